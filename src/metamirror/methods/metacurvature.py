r"""MetaCurvature: the gradient of each tensor multiplied along each of its modes.

$P(G) = G \times_1 M_o \times_2 M_i \times_3 M_f$ for a convolution kernel flattened to three
modes; a vector is multiplied elementwise. All factors start at the identity and are unconstrained.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from metamirror.core.geometry import Preconditioner
from metamirror.core.mirror_map import MirrorMap
from metamirror.core.settings import Settings
from metamirror.core.tasks import Params
from metamirror.linalg.kronecker import Shape, ShapeGroups, kronecker_product, module_list
from metamirror.methods.named_parameters import learned, modes_of
from metamirror.methods.registry import Method, Parts
from metamirror.mirror_maps.quadratic import Linear


@dataclass(frozen=True)
class Options:
    """Options of `metacurvature`.

    Attributes:
        variant: "mc2" has a factor for every mode, "mc1" leaves output units alone.
        head: "dense" factors the head as the matrix it is stored as; "folded" as the feature map
            it reads (a model says so with `modes`), at a fraction of the parameters.
        vectors: multiply biases and normalisation parameters too.
    """

    variant: Literal["mc2", "mc1"] = "mc2"
    head: Literal["dense", "folded"] = "dense"
    vectors: bool = True


class KroneckerGeometry(Preconditioner):
    """One Kronecker-factored matrix per tensor, several tensors of a shape at once."""

    def __init__(
        self, shapes: Params, modes: dict[str, Shape], variant: Literal["mc2", "mc1"], vectors: bool
    ):
        super().__init__()
        self.groups = ShapeGroups({name: tuple(t.shape) for name, t in shapes.items()}, modes)
        self.vectors = vectors
        # mc1 has no factor for the output units, the first mode.
        self.first_mode = 1 if variant == "mc2" else 2
        self.factors = module_list(
            nn.ParameterList(self._identity(len(names), shape))
            for shape, names in self.groups.members.items()
        )

    def _identity(self, count: int, shape: Shape) -> list[Tensor]:
        if len(shape) == 1:
            return [torch.ones(count, *shape)] if self.vectors else []
        return [torch.eye(n).repeat(count, 1, 1) for n in shape[self.first_mode - 1 :]]

    def direction(self, grad: Params, prepared: None) -> Params:
        stacked = zip(self.groups.stack(grad), self.factors, strict=True)
        return self.groups.unstack([self._multiply(g, list(f)) for g, f in stacked])

    def _multiply(self, g: Tensor, factors: list[Tensor]) -> Tensor:
        if g.dim() == 2:
            return g * factors[0] if self.vectors else g
        return kronecker_product(g, factors, first_mode=self.first_mode)

    def candidate_mirror_map(self, theta: Params) -> MirrorMap:
        return Linear(lambda z: self.direction(z, None))


def build(model: nn.Module, options: Options, settings: Settings) -> Parts:
    """Learn factors for every parameter of the model."""
    own = getattr(model, "modes", {}) if options.head == "folded" else {}
    start = learned(model)
    # Vectors are multiplied elementwise, however long they are.
    long = {name: modes for name, modes in modes_of(model).items() if start[name].dim() > 1}
    modes = {**own, **long}
    return Parts(model, KroneckerGeometry(start, modes, options.variant, options.vectors))


METHOD = Method(
    key="metacurvature",
    title="MetaCurvature",
    optimizer="PGD",
    geometry="block diag. & Kron. (low-rank) matrix",
    paper="Park, Oliva 2019",
    build=build,
    options=Options,
    published={1: "54.23 ± 0.88", 5: "67.99 ± 0.73"},
    group="paper",
    shaped=True,
)
