r"""MetaSGD: one learned rate per parameter, $\phi \leftarrow \phi - \alpha \odot \nabla L$."""

from dataclasses import dataclass

import torch
from torch import nn

from metamirror.core.geometry import Preconditioner
from metamirror.core.mirror_map import MirrorMap
from metamirror.core.settings import Settings
from metamirror.core.tasks import Params
from metamirror.methods.named_parameters import learned
from metamirror.methods.registry import Method, Parts
from metamirror.mirror_maps.quadratic import Diagonal


@dataclass(frozen=True)
class Options:
    """Options of `metasgd`.

    Attributes:
        positive: learn log-rates, so that every rate stays above zero.
    """

    positive: bool = False


class DiagonalGeometry(Preconditioner):
    """A diagonal preconditioner. Its parameters are the rates, or their logarithms.

    Args:
        shapes: the parameters that adapt.
        lr: the step size at which every rate starts.
        positive: whether the logarithm is learned.
    """

    def __init__(self, shapes: Params, lr: float, positive: bool):
        super().__init__()
        if lr <= 0:
            raise ValueError(f"lr is {lr}; metasgd's rates start there, so it must be above 0")
        self.lr = lr
        self.positive = positive
        self.names = list(shapes)
        # Log-rates are kept relative to lr: a shift of the logarithm, and an exact 1 at the start.
        start = 0.0 if positive else lr
        self.rates = nn.ParameterList(torch.full_like(t, start) for t in shapes.values())

    def prepare(self, theta: Params | None) -> Params:
        """Return the rates relative to the step size that the inner loop multiplies with."""
        return {
            name: rate.exp() if self.positive else rate / self.lr
            for name, rate in zip(self.names, self.rates, strict=True)
        }

    def direction(self, grad: Params, prepared: Params) -> Params:
        return {name: prepared[name] * g for name, g in grad.items()}

    def candidate_mirror_map(self, theta: Params) -> MirrorMap:
        return Diagonal(self.prepare(theta))


def build(model: nn.Module, options: Options, settings: Settings) -> Parts:
    """Learn a rate for every parameter."""
    return Parts(model, DiagonalGeometry(learned(model), settings.lr, options.positive))


METHOD = Method(
    key="metasgd",
    title="MetaSGD",
    optimizer="PGD",
    geometry="diag. matrix",
    paper="Li, Zhou, Chen, Li 2017",
    build=build,
    options=Options,
    published={1: "50.47 ± 1.87", 5: "64.03 ± 0.94"},
    group="paper",
    shaped=True,
)
