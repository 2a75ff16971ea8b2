"""ANIL: only the head adapts. A control: what a method gains, it must gain over this."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from metamirror.methods.registry import Method, Parts
from metamirror.models import head_of


@dataclass(frozen=True)
class Options:
    """Options of `anil`.

    Attributes:
        head: name of the layer that adapts; by default the last linear one.
    """

    head: str | None = None


def build(model: nn.Module, options: Options, lr: float) -> Parts:
    """The body is learned by the outer level alone."""
    return Parts(model, adapts=parameters_of(model, options.head or head_of(model)))


def parameters_of(model: nn.Module, layer: str) -> list[str]:
    """Names of the learned parameters of one layer; a tied one has the name it was given first."""
    layers = [name for name, m in model.named_modules() if name and [*m.parameters(False)]]
    try:
        own = {id(p) for p in model.get_submodule(layer).parameters()}
    except AttributeError as error:
        raise ValueError(f"there is no layer {layer!r}; the layers are {layers}") from error
    names = [n for n, p in model.named_parameters() if p.requires_grad and id(p) in own]
    if not names:
        raise ValueError(f"the layer {layer!r} has no learned parameters; the layers are {layers}")
    return names


METHOD = Method(
    key="anil",
    title="ANIL",
    optimizer="GD on the head",
    geometry="identity matrix",
    paper="Raghu, Raghu, Bengio, Vinyals 2020",
    build=build,
    options=Options,
    control=True,
)
