"""A map of some parameters, beside others that it leaves as they are."""

from collections.abc import Collection, Mapping
from typing import Any

from torch import Tensor

from metamirror.core.mirror_map import Bounds, MirrorMap, inner
from metamirror.core.tasks import Params


def parted(point: Params, rest: Collection[str]) -> tuple[Params, Params]:
    """Return a point without the parameters called `rest`, and these."""
    own = {name: p for name, p in point.items() if name not in rest}
    return own, {name: p for name, p in point.items() if name in rest}


class BesideIdentity(MirrorMap):
    """phi = g(z) for most parameters, and phi = z for the rest.

    >>> import torch
    >>> from metamirror.mirror_maps import Diagonal
    >>> g = BesideIdentity(Diagonal({"v": torch.tensor(2.0)}), ["w"])
    >>> g({"v": torch.tensor(1.0), "w": torch.tensor(1.0)})
    {'v': tensor(2.), 'w': tensor(1.)}
    """

    def __init__(self, g: MirrorMap, rest: Collection[str]):
        super().__init__()
        self.g, self.rest = g, frozenset(rest)
        self.is_gradient, self.is_linear = g.is_gradient, g.is_linear

    def prepare(self) -> Mapping[str, Any]:
        return self.g.prepare()

    def forward(self, z: Params, prepared: Mapping[str, Any] | None = None) -> Params:
        own, rest = parted(z, self.rest)
        return {**self.g(own, prepared), **rest}

    def inverse(self, phi: Params) -> Params:
        own, rest = parted(phi, self.rest)
        return {**self.g.inverse(own), **rest}

    def bounds(self, *, current: bool = False) -> Bounds | None:
        found = self.g.bounds(current=current)
        return None if found is None else (min(found[0], 1.0), max(found[1], 1.0))

    def potential(self, z: Params) -> Tensor:
        own, rest = parted(z, self.rest)
        found = self.g.potential(own)
        return found + inner(rest, rest) / 2 if rest else found
