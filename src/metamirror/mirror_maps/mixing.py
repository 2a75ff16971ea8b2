r"""A linear map that mixes the entries of each tensor, along each of its modes.

$$\mathrm{vec}(\phi) = (M_1 \otimes \dots \otimes M_O)\,\mathrm{vec}(z), \qquad
  M = (I + L)\,D\,(I + U),$$

with L strictly lower and U strictly upper triangular and D a diagonal between exp(-3) and exp(3):
in exact arithmetic every M has an inverse, whatever is learned. To first order
$M = I + L + \log D + U$: each entry of M is free.
Inside a flow it is what an invertible 1x1 convolution is in Glow (Kingma and Dhariwal 2018).
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from metamirror.core.mirror_map import MirrorMap, check_point
from metamirror.core.tasks import Params
from metamirror.linalg.kronecker import Shape, ShapeGroups, kronecker_product, module_list
from metamirror.linalg.parametrisation import MIXING_SPEED, bounded_scale


class KroneckerMixing(MirrorMap):
    """An invertible Kronecker-factored linear map of each matrix or kernel; vectors stay as is.

    Args:
        shapes: stored shapes of the parameters.
        modes: modes of single parameters where they differ from the stored shape.

    >>> g = KroneckerMixing({"w": (4, 3), "b": (4,)})
    >>> z = {"w": torch.randn(4, 3), "b": torch.randn(4)}
    >>> all(torch.equal(g(z)[name], z[name]) for name in z)
    True
    """

    is_linear = True

    def __init__(self, shapes: Mapping[str, Shape], modes: Mapping[str, Shape] | None = None):
        super().__init__()
        self.shapes = dict(shapes)
        mixed = {name: shape for name, shape in shapes.items() if len(shape) > 1}
        known = {name: shape for name, shape in (modes or {}).items() if name in mixed}
        self.groups = ShapeGroups(mixed, known)
        self.entries = module_list(
            nn.ParameterList(torch.zeros(len(names), n, n) for n in shape)
            for shape, names in self.groups.members.items()
        )

    def prepare(self) -> dict[str, Any]:
        return {"factors": [[_factor(v) for v in entries] for entries in self.entries]}

    def forward(self, z: Params, prepared: Mapping[str, Any] | None = None) -> Params:
        stacks = zip(self.groups.stack(z), (prepared or self.prepare())["factors"], strict=True)
        mixed = self.groups.unstack([kronecker_product(x, factors) for x, factors in stacks])
        return {**z, **mixed}

    def inverse(self, phi: Params) -> Params:
        """Solve with each factor."""
        check_point(phi, self.shapes)
        inverses = [[_inverse(f) for f in fs] for fs in self.prepare()["factors"]]
        return self.forward(phi, {"factors": inverses})


def _inverse(factor: Tensor) -> Tensor:
    inverse: Tensor = torch.linalg.inv_ex(factor).inverse
    if factor.device.type != "meta":
        # Products of the two may look right although half of their digits are lost.
        norms = [torch.linalg.matrix_norm(m.detach(), ord=1) for m in (factor, inverse)]
        condition = float((norms[0] * norms[1]).max())
        if not condition <= torch.finfo(factor.dtype).eps ** -0.5:
            raise ValueError(
                f"a factor of the mixing cannot be inverted in {factor.dtype}: its condition "
                f"number is {condition:.2g}; use float64"
            )
    return inverse


def _factor(entries: Tensor) -> Tensor:
    """Return M = (I + L) D (I + U) from a stack of square matrices."""
    v = entries * (MIXING_SPEED / entries.shape[-1])
    eye = torch.eye(v.shape[-1], device=v.device, dtype=v.dtype)
    diagonal = bounded_scale(v.diagonal(dim1=-2, dim2=-1), speed=1.0)
    found: Tensor = (eye + v.tril(-1)) * diagonal.unsqueeze(-2) @ (eye + v.triu(1))
    return found
