"""Tensors of a point gathered into one vector or few stacks, and back."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

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
        return [
            torch.stack(
                [
                    z[i] if size == width else pad(z[i], (0, width - size))
                    for i, size in zip(places, sizes, strict=True)
                ]
            )
            for places, sizes, width in zip(self.places, self.sizes, self.widths, strict=True)
        ]

    def pack_one(self, z: Sequence[Tensor]) -> list[Tensor]:
        """Return a single point as one tensor (tensors, width) per stack."""
        return [packed.squeeze(1) for packed in self.pack([t.reshape(1, -1) for t in z])]

    def unpack(self, packed: Sequence[Tensor]) -> list[Tensor]:
        """Invert `pack`."""
        z: dict[int, Tensor] = {}
        for places, sizes, width, tensor in zip(
            self.places, self.sizes, self.widths, packed, strict=True
        ):
            for i, size, row in zip(places, sizes, tensor.unbind(0), strict=True):
                z[i] = row if size == width else row[:, :size]
        return [z[i] for i in range(len(z))]


def rows_of(codes: Tensor) -> Tensor:
    """Return (pieces, points, numbers) as a row of all numbers for each point."""
    return codes.transpose(0, 1).flatten(1)


def pieces_of(rows: Tensor, pieces: int) -> Tensor:
    """Invert `rows_of`."""
    return rows.view(len(rows), pieces, -1).transpose(0, 1)
