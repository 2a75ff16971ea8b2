"""BOIL: only the body adapts. The head is learned by the outer level alone, as ANIL's body is.

A task has to move its features to the head, instead of a head to features that all tasks share. The
paper trains the body with a larger step size than MAML's; here it is the one of all methods, `lr`.
"""

from dataclasses import dataclass

from torch import nn

from metamirror.core.settings import Settings
from metamirror.methods.named_parameters import learned, parameters_of
from metamirror.methods.registry import Method, Parts
from metamirror.models import head_of


@dataclass(frozen=True)
class Options:
    """Options of `boil`.

    Attributes:
        head: name of the layer that does not adapt; by default the last linear one.
    """

    head: str | None = None


def build(model: nn.Module, options: Options, settings: Settings) -> Parts:
    """Adapt everything but the head."""
    name = options.head or head_of(model)
    head = parameters_of(model, name)
    body = [parameter for parameter in learned(model) if parameter not in head]
    if not body:
        raise ValueError(f"the model has no parameters but those of its head {name!r}: none adapts")
    return Parts(model, adapts=body)


METHOD = Method(
    key="boil",
    title="BOIL",
    optimizer="GD on the body",
    geometry="identity matrix",
    paper="Oh, Yoo, Kim, Yun 2021",
    reported="49.61 ± 0.16 / 66.45 ± 0.37, conv4-64",
    build=build,
    options=Options,
    group="relative",
)
