"""Maps one after the other."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from metamirror.core.mirror_map import MirrorMap
from metamirror.core.tasks import Params
from metamirror.linalg.kronecker import module_list


class Composition(MirrorMap):
    """phi = g_n(.. g_1(z)): a bijection where each g_i is one.

    It need not be a mirror map where each g_i is one: a product of symmetric matrices need not be
    symmetric.

    >>> import torch
    >>> from metamirror.mirror_maps import Diagonal
    >>> g = Composition([Diagonal({"w": torch.tensor(2.0)}), Diagonal({"w": torch.tensor(3.0)})])
    >>> g({"w": torch.tensor(1.0)})
    {'w': tensor(6.)}
    """

    def __init__(self, maps: Sequence[MirrorMap]):
        super().__init__()
        self.maps = module_list(maps)

    def prepare(self) -> dict[str, Any]:
        return {"maps": [g.prepare() for g in self.maps]}

    def forward(self, z: Params, prepared: Mapping[str, Any] | None = None) -> Params:
        for g, own in zip(self.maps, (prepared or self.prepare())["maps"], strict=True):
            z = g(z, own)
        return z

    def inverse(self, phi: Params) -> Params:
        """Undo the maps, the last one first."""
        for g in reversed(self.maps):
            phi = g.inverse(phi)
        return phi

    def with_constant(
        self, prepared: Mapping[str, Any], constant: Params
    ) -> Mapping[str, Any] | None:
        *before, last = prepared["maps"]
        whole = self.maps[-1].with_constant(last, constant)
        return None if whole is None else {"maps": [*before, whole]}

    def constants(self) -> list[nn.Parameter]:
        """Return those of the last map: a constant before another map bends what follows."""
        return self.maps[-1].constants()
