"""How the index set {1..d} is cut into the ordered blocks of blockIAF."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from metamirror.core.tasks import Params
from metamirror.linalg.kronecker import Shape, fold

Blocks = Literal["layer", "tensor", "index"] | Sequence[Sequence[str]] | Sequence[Sequence[int]]


class Partition:
    """Ordered blocks of pieces. A piece is what gets an encoder and a decoder of its own.

    For blocks of names a piece is a parameter; for blocks of indices it is the block's subvector
    of the flattened parameters.

    Args:
        shapes: stored shapes of the parameters, in order.
        blocks: "layer" (a layer with its normalisation parameters), "tensor", "index" (every
            single number, for small d), or lists of parameter names, or lists of flat indices.
        modes: modes of single parameters where they differ from `fold` of the stored shape.
        reverse: take the blocks in the opposite order.

    >>> shapes = {"a.weight": (2, 2), "a.bias": (2,), "b.weight": (1, 2)}
    >>> Partition(shapes, "layer").blocks
    [['a.weight', 'a.bias'], ['b.weight']]
    """

    def __init__(
        self,
        shapes: Mapping[str, Shape],
        blocks: Blocks = "layer",
        modes: Mapping[str, Shape] | None = None,
        reverse: bool = False,
    ):
        self.shapes = {name: tuple(shape) for name, shape in shapes.items()}
        self.sizes = [math.prod(shape) for shape in self.shapes.values()]
        self.indices: list[Tensor] | None = None
        if blocks == "layer":
            blocks = layers(self.shapes)
        elif blocks == "tensor":
            blocks = [[name] for name in self.shapes]
        elif blocks == "index":
            blocks = [[i] for i in range(sum(self.sizes))]
        elif isinstance(blocks, str):
            raise ValueError(
                f"blocks is {blocks!r}; choose 'layer', 'tensor', 'index' or give lists"
            )
        blocks = blocks[::-1] if reverse else blocks
        kinds = {type(entry) for block in blocks for entry in block}
        if not kinds <= {str} and not kinds <= {int}:
            raise ValueError(
                f"blocks holds {sorted(k.__name__ for k in kinds)}; give names or indices"
            )
        if kinds == {int}:
            self._cut_indices(blocks)
        else:
            self._cut_names(blocks, modes or {})

    def _cut_names(self, blocks: Sequence[Sequence[Any]], modes: Mapping[str, Shape]) -> None:
        _check_cover(blocks, list(self.shapes))
        for name, shape in modes.items():
            if math.prod(shape) != math.prod(self.shapes.get(name, (0,))):
                raise ValueError(f"the modes {tuple(shape)} of {name} do not hold its shape")
        self.blocks = [list(block) for block in blocks]
        self.pieces = {
            name: tuple(modes.get(name, fold(self.shapes[name])))
            for block in self.blocks
            for name in block
        }

    def _cut_indices(self, blocks: Sequence[Sequence[Any]]) -> None:
        _check_cover(blocks, range(sum(self.sizes)))
        self.indices = [torch.tensor(list(block)) for block in blocks]
        self.order = torch.argsort(torch.cat(self.indices))
        self.blocks = [[f"block {i}"] for i in range(len(blocks))]
        self.pieces = {f"block {i}": (len(block),) for i, block in enumerate(blocks)}

    def split(self, params: Params) -> dict[str, Tensor]:
        """Return the pieces of a point, in their modes."""
        if self.indices is None:
            return {name: params[name].reshape(shape) for name, shape in self.pieces.items()}
        flat = torch.cat([params[name].reshape(-1) for name in self.shapes])
        return {
            piece: flat[index.to(flat.device)]
            for piece, index in zip(self.pieces, self.indices, strict=True)
        }

    def join(self, pieces: Mapping[str, Tensor]) -> Params:
        """Invert `split`."""
        if self.indices is None:
            return {name: pieces[name].reshape(shape) for name, shape in self.shapes.items()}
        flat = torch.cat([pieces[piece] for piece in self.pieces])
        tensors = flat[self.order.to(flat.device)].split(self.sizes)
        return {
            name: tensor.reshape(shape)
            for (name, shape), tensor in zip(self.shapes.items(), tensors, strict=True)
        }


def layers(shapes: Mapping[str, Shape]) -> list[list[str]]:
    """Make one block per layer: a matrix and the vectors that follow it.

    Two matrices of one module belong together; those that a model holds directly do not.
    """
    blocks: list[list[str]] = []
    owner: str | None = None
    for name, shape in shapes.items():
        module = name.rpartition(".")[0]
        if not blocks or (
            len(shape) > 1 and (owner is not None) and (module != owner or not module)
        ):
            blocks.append([])
        blocks[-1].append(name)
        if len(shape) > 1:
            owner = module
    return blocks


def _check_cover(blocks: Sequence[Sequence[Any]], wanted: Sequence[Any]) -> None:
    if any(len(block) == 0 for block in blocks):
        raise ValueError("blocks holds an empty block")
    counts = Counter(entry for block in blocks for entry in block)
    known = set(wanted)
    mistakes = {
        "misses": [entry for entry in wanted if entry not in counts],
        "repeats": [entry for entry, count in counts.items() if count > 1],
        "does not know": [entry for entry in counts if entry not in known],
    }
    for what, entries in mistakes.items():
        if entries:
            raise ValueError(
                f"blocks {what} {entries[:5]}{' and more' if len(entries) > 5 else ''}; "
                f"each parameter or index belongs to exactly one block"
            )
