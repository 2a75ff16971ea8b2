"""A map as one operation of autograd, that takes the points of all vectorised tasks at once.

A map is some fifty small operations: recorded one by one, autograd and `torch.func.vmap` cost
several times what they compute. Here the whole map is one function with a backward pass of its own.
Wherever that does not do, inside other transforms of `torch.func` and where the backward pass is
itself differentiated, the same forward pass runs as ordinary operations.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from metamirror.core.outside_vmap import only_vmap, outside_vmap, stacked
from metamirror.core.trees import tensors_in, with_tensors

Tree = Any
"""Nested dicts and lists of tensors or None."""


class Pass(Protocol):
    """The two directions of a map, over several points at once."""

    def forward_pass(self, z: list[Tensor], prepared: Tree) -> tuple[list[Tensor], Any]:
        """Return phi for z, each (points, numbers), and what the backward pass reads."""

    def backward_pass(
        self, grads: list[Tensor], prepared: Tree, trace: Any
    ) -> tuple[Sequence[Tensor | None], Tree]:
        """Return the gradients in z, None where none is needed, and in what was prepared."""


class _OnePass(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: "_Call", *tensors: Tensor) -> Any:
        ctx.call = call
        ctx.save_for_backward(*tensors)
        phi, ctx.trace = call.forward(tensors, call.prepared)
        return tuple(phi)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        call = ctx.call
        if not torch.is_grad_enabled():
            return None, *call.backward(grads, ctx.trace)
        # To be differentiated again: a trace knows nothing of where it came from.
        tensors = ctx.saved_tensors
        wanted = [t for t in tensors if t.requires_grad]
        phi = call.forward(tensors, with_tensors(call.prepared, tensors[call.count :]))[0]
        found = iter(
            torch.autograd.grad(phi, wanted, grads, create_graph=True, materialize_grads=True)
        )
        return None, *(next(found) if t.requires_grad else None for t in tensors)


@dataclass
class _Call:
    """A map, what was prepared for it, and of how many points its `count` tensors are stacks."""

    g: Pass
    prepared: Tree
    count: int
    points: int = 1

    def forward(self, z: Sequence[Tensor], prepared: Tree) -> tuple[list[Tensor], Any]:
        rows = [t.reshape(self.points, -1) for t in z[: self.count]]
        phi, trace = self.g.forward_pass(rows, prepared)
        return [p.reshape(t.shape) for p, t in zip(phi, z, strict=False)], trace

    def backward(self, grads: Sequence[Tensor], trace: Any) -> Iterator[Tensor | None]:
        rows = [grad.reshape(self.points, -1) for grad in grads]
        to_z, to_prepared = self.g.backward_pass(rows, self.prepared, trace)
        for found, grad in zip(to_z, grads, strict=True):
            yield None if found is None else found.reshape(grad.shape)
        yield from tensors_in(to_prepared)

    def __call__(self, z: Sequence[Tensor]) -> Sequence[Tensor]:
        if not (torch.is_grad_enabled() and only_vmap()):
            return self.forward(z, self.prepared)[0]
        shared = tensors_in(self.prepared)
        if not torch._C._are_functorch_transforms_active():
            return cast(Sequence[Tensor], _OnePass.apply(self, *z, *shared))  # type: ignore[no-untyped-call]
        # Where each entry of the axis has a map of its own, there is nothing to share.
        if any(map(stacked, shared)) or not any(map(stacked, z)):
            return self.forward(z, self.prepared)[0]
        return cast(Sequence[Tensor], outside_vmap(self._stacked, *z))

    def _stacked(self, size: int, axes: Sequence[int | None], z: Sequence[Tensor]) -> Any:
        """Turn the axis of `torch.func.vmap` into that of the points."""
        rows = [
            t.expand(size, *t.shape) if axis is None else t.movedim(axis, 0)
            for t, axis in zip(z, axes, strict=True)
        ]
        return tuple(replace(self, points=self.points * size)(rows)), (0,) * self.count


def one_operation(g: Pass, z: Sequence[Tensor], prepared: Tree) -> list[Tensor]:
    """Return phi for z, tensor by tensor, of a map that is given as its two passes."""
    return list(_Call(g, prepared, len(z))(z))
