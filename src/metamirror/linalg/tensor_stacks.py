"""Tensors of a point gathered into one vector or few stacks, and back."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from metamirror.core.tasks import Params


def flat(tensors: Params) -> Tensor:
    """Return the tensors of a point as one vector."""
    return torch.cat([t.reshape(-1) for t in tensors.values()])


def unflat(vector: Tensor, like: Params) -> Params:
    """Return the inverse of `flat`, with the names and shapes of another point."""
    parts = vector.split([t.numel() for t in like.values()])
    return {name: part.view_as(like[name]) for name, part in zip(like, parts, strict=True)}


class Packing:
    """Which tensors stand in which stack; where their sizes differ, zeros fill up the smaller.

    Args:
        sizes: how many numbers each tensor holds, in the order in which they are given.
        stacks: the names in each stack.
    """

    def __init__(self, sizes: Mapping[str, int], stacks: Sequence[Sequence[str]]):
        place = {name: i for i, name in enumerate(sizes)}
        self.places = [[place[name] for name in stack] for stack in stacks]
        self.sizes = [[sizes[name] for name in stack] for stack in stacks]
        self.widths = [max(held) for held in self.sizes]

    def pack(self, z: Sequence[Tensor]) -> list[Tensor]:
        """Return z, each (points, numbers), as one tensor (tensors, points, width) per stack."""
        points = z[0].shape[0]
        packed = []
        for places, sizes, width in zip(self.places, self.sizes, self.widths, strict=True):
            parts = []
            for i, size in zip(places, sizes, strict=True):
                parts.append(z[i])
                if size < width:
                    parts.append(z[i].new_zeros(points, width - size))
            packed.append(torch.cat(parts, 1).view(points, -1, width).transpose(0, 1))
        return packed

    def pack_one(self, z: Sequence[Tensor]) -> list[Tensor]:
        """Return a single point as one tensor (tensors, width) per stack."""
        return [packed.squeeze(1) for packed in self.pack([t.reshape(1, -1) for t in z])]

    def unpack(self, packed: Sequence[Tensor]) -> list[Tensor]:
        """Invert `pack`, from (tensors, width, points)."""
        z: dict[int, Tensor] = {}
        for places, sizes, width, tensor in zip(
            self.places, self.sizes, self.widths, packed, strict=True
        ):
            rows = tensor.permute(2, 0, 1).reshape(tensor.shape[2], -1)
            parts = rows.split([n for size in sizes for n in (size, width - size)], 1)
            z.update(zip(places, parts[::2], strict=True))
        return [z[i] for i in range(len(z))]
