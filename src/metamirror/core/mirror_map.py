r"""What a mirror map is.

A map here is the *inverse* mirror map of the paper, $g = (\nabla h)^{-1}: z \mapsto \phi$, from the
dual variable that descends to the parameters that the model runs with.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, final

import torch
from torch import Tensor, nn

from metamirror.core.tasks import Params

Bounds = tuple[float, float]


class MirrorMap(nn.Module, ABC):
    """A map g over parameter dicts, phi = g(z). Its own parameters are meta-learned.

    >>> Identity().bounds()
    (1.0, 1.0)
    """

    is_gradient: bool = False
    """Whether g = grad Psi for a convex Psi by construction, so that h = Psi* exists."""

    is_linear: bool = False
    """Whether the Jacobian is the same everywhere."""

    def prepare(self) -> Mapping[str, Any]:
        """Compute what does not depend on z, once per outer step; it is passed to `forward`."""
        return {}

    @abstractmethod
    def forward(self, z: Params, prepared: Mapping[str, Any] | None = None) -> Params:
        """Return phi = g(z)."""

    def constants(self) -> list[nn.Parameter]:
        """Return the parameters that add a constant to g and do nothing else."""
        return []

    def with_constant(
        self, prepared: Mapping[str, Any], constant: Params
    ) -> Mapping[str, Any] | None:
        """Return what `forward` needs for g(z) + constant; None if the caller has to add it."""
        return None

    def inverse(self, phi: Params) -> Params:
        """Return z with g(z) = phi: the mirror map itself, grad h, where h exists."""
        raise ValueError(f"{type(self).__name__} has no inverse that could be computed")

    def bounds(self, *, current: bool = False) -> Bounds | None:
        r"""Return (m, M) with $mI \preceq \partial g \preceq MI$ at every z, or None.

        They hold whatever values the parameters take; with `current=True`, for those of now.
        """
        return None

    def check_parameters(self) -> None:
        """Refuse a map whose own parameters are not finite: nothing can be said about it."""
        for name, p in self.named_parameters():
            if p.device.type != "meta" and not bool(torch.isfinite(p).all()):
                raise ValueError(f"the map's parameter {name} is not finite")

    def potential(self, z: Params) -> Tensor:
        """Return Psi(z), up to a constant, of a map that is a gradient."""
        raise ValueError(
            f"{type(self).__name__} is not the gradient of a function: it has no potential"
        )


@final
class Identity(MirrorMap):
    r"""$h = \frac12\|\cdot\|_2^2$: mirror descent is gradient descent."""

    is_gradient = True
    is_linear = True

    def forward(self, z: Params, prepared: Mapping[str, Any] | None = None) -> Params:
        return z

    def inverse(self, phi: Params) -> Params:
        check_point(phi, {name: tuple(p.shape) for name, p in phi.items()})
        return phi

    def bounds(self, *, current: bool = False) -> Bounds:
        return (1.0, 1.0)

    def potential(self, z: Params) -> Tensor:
        return inner(z, z) / 2


def inner(a: Params, b: Params) -> Tensor:
    """Return the inner product of two parameter dicts taken as vectors."""
    return torch.stack([(a[name] * b[name]).sum() for name in a]).sum()


def check_point(point: Params, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse a point that lacks a parameter, has another shape, or is not finite."""
    if set(point) != set(shapes):
        raise ValueError(
            f"the point has {sorted(set(point) - set(shapes))} that the map does not know and "
            f"lacks {sorted(set(shapes) - set(point))}"
        )
    for name, tensor in point.items():
        if tuple(tensor.shape) != tuple(shapes[name]):
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}; the map has {shapes[name]}")
        if tensor.device.type != "meta" and not bool(torch.isfinite(tensor).all()):
            raise ValueError(f"{name} is not finite: a map has no value and no inverse there")
