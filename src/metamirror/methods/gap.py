r"""GAP: the singular values of each layer's gradient multiplied by learned factors.

The gradient of a layer, unfolded to a matrix $G = U \Sigma V^\top$ with a row for each output unit,
becomes $U (M \Sigma) V^\top$ with M = diag(m) > 0, learned and the same at every step. This is
$U M U^\top G$: a positive definite preconditioner that depends on the task and on the point.

The authors' code does so for the kernels of convolutions alone, and takes U as a constant in the
meta-gradient; vectors U of singular values that are zero are arbitrary, and the result depends on
them. Here the derivative is exact. The factors start at 1 and stay between exp(-3) and exp(3); the
authors' are a softplus that starts near 1.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from metamirror.core.geometry import Preconditioner
from metamirror.core.mirror_map import MirrorMap
from metamirror.core.settings import Settings
from metamirror.core.tasks import Params
from metamirror.linalg.kronecker import Shape, ShapeGroups
from metamirror.linalg.parametrisation import bounded_scale
from metamirror.linalg.spectral_scaling import spectral_scaling
from metamirror.methods.named_parameters import learned
from metamirror.methods.registry import Method, Parts
from metamirror.mirror_maps.quadratic import Diagonal

Layers = Literal["kernels", "all"]


@dataclass(frozen=True)
class Options:
    """Options of `gap`.

    Attributes:
        approximate: use the authors' form without a decomposition: the factors multiply the rows
            of G, or its columns where these are fewer. It is exact where the rows are orthogonal
            and stand in the order of their length.
        layers: "kernels" of convolutions, or "all" weights but vectors; by default the kernels
            where the model has some.
    """

    approximate: bool = False
    layers: Layers | None = None


def unfolded(shape: Shape) -> Shape:
    """Return the matrix as which a weight is treated: output units by everything else.

    >>> unfolded((64, 3, 3, 3)), unfolded((5, 1600))
    ((64, 27), (5, 1600))
    """
    return (shape[0], math.prod(shape[1:]))


class SpectralGeometry(Preconditioner):
    """A factor for each singular value of a weight's gradient, the largest value first.

    Args:
        weights: the weights whose gradients are preconditioned; all others keep theirs.
        approximate: as in `Options`.
    """

    def __init__(self, weights: Params, approximate: bool):
        super().__init__()
        self.approximate = approximate
        shapes = {name: tuple(t.shape) for name, t in weights.items()}
        self.groups = ShapeGroups(shapes, {n: unfolded(shape) for n, shape in shapes.items()})
        self.scales = nn.ParameterList(
            torch.zeros(len(names), min(modes)) for modes, names in self.groups.members.items()
        )

    def prepare(self, theta: Params | None) -> list[Tensor]:
        return [bounded_scale(a) for a in self.scales]

    def direction(self, grad: Params, prepared: list[Tensor]) -> Params:
        stacks = self.groups.stack({name: grad[name] for name in self.groups.shapes})
        scaled = [self._scaled(g, m) for g, m in zip(stacks, prepared, strict=True)]
        return {**grad, **self.groups.unstack(scaled)}

    def _scaled(self, g: Tensor, m: Tensor) -> Tensor:
        if not self.approximate:
            return spectral_scaling(g, m)
        rows, columns = g.shape[-2:]
        return g * m.unsqueeze(-1 if rows <= columns else -2)

    def candidate_mirror_map(self, theta: Params) -> MirrorMap | None:
        """Return a map for the approximate form alone: others depend on the gradient."""
        if not self.approximate:
            return None
        ones = {name: torch.ones_like(p) for name, p in theta.items()}
        return Diagonal(self.direction(ones, self.prepare(theta)))


def build(model: nn.Module, options: Options, settings: Settings) -> Parts:
    """Learn a factor for each singular value of each layer's gradient."""
    parameters = learned(model)
    axes = 2 if options.layers == "all" else 3
    weights = {name: p for name, p in parameters.items() if p.dim() >= axes}
    if options.layers is None and not weights:
        weights = {name: p for name, p in parameters.items() if p.dim() >= 2}
    if not weights:
        raise ValueError(
            f"gap:layers is {options.layers!r}; the model has no such weights: choose 'all', or "
            f"another method for a model whose parameters are vectors"
        )
    return Parts(model, SpectralGeometry(weights, options.approximate))


METHOD = Method(
    key="gap",
    title="GAP",
    optimizer="PGD",
    geometry="scaled singular values of the gradient",
    paper="Kang, Hwang, Eo, Kim, Rhee 2023",
    build=build,
    options=Options,
    group="relative",
    shaped=True,
)
