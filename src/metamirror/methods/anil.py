"""ANIL: only the head adapts. A control: what a method gains, it must gain over this."""

from dataclasses import dataclass

from torch import nn

from metamirror.core.settings import Settings
from metamirror.methods.adapting import choose
from metamirror.methods.named_parameters import parameters_of
from metamirror.methods.registry import Method, Parts


@dataclass(frozen=True)
class Options:
    """Options of `anil`.

    Attributes:
        head: name of the layer that adapts; by default the last linear one.
    """

    head: str | None = None


def build(model: nn.Module, options: Options, settings: Settings) -> Parts:
    """Adapt the head alone; the outer level learns the body."""
    named = parameters_of(model, options.head) if options.head else choose(model, "head")
    return Parts(model, adapts=named)


METHOD = Method(
    key="anil",
    title="ANIL",
    optimizer="GD on the head",
    geometry="identity matrix",
    paper="Raghu, Raghu, Bengio, Vinyals 2020",
    build=build,
    options=Options,
    group="control",
)
