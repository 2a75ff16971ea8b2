"""A map as one operation of autograd, that takes the points of all vectorised tasks at once.

A map is some fifty small operations: recorded one by one, autograd and `torch.func.vmap` cost
several times what they compute. Here the whole map is one function with a backward pass of its own.
Wherever that does not do, inside other transforms of `torch.func` and where the backward pass is
itself differentiated, the same forward pass runs as ordinary operations.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from metamirror.core.outside_vmap import only_vmap
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
    def forward(call: "_Call", *tensors: Tensor) -> Any:
        phi, call.trace = call.forward(tensors)
        return tuple(phi)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.call, *tensors = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        call, tensors = ctx.call, ctx.saved_tensors
        if not torch.is_grad_enabled():
            return None, *call.backward(grads, tensors)
        # To be differentiated again: a trace knows nothing of where it came from.
        wanted = [t for t in tensors if t.requires_grad]
        found = iter(
            torch.autograd.grad(
                call.forward(tensors)[0], wanted, grads, create_graph=True, materialize_grads=True
            )
        )
        return None, *(next(found) if t.requires_grad else None for t in tensors)

    @staticmethod
    def vmap(info: Any, in_dims: Any, call: "_Call", *tensors: Tensor) -> Any:
        """Turn the axis of `torch.func.vmap` into that of the points."""
        dims, count = in_dims[1:], call.count
        if any(d is not None for d in dims[count:]):
            # Each entry of the axis has a map of its own: there is nothing to share.
            def ordinary(*given: Tensor) -> tuple[Tensor, ...]:
                return tuple(call.forward(given)[0])

            return torch.func.vmap(ordinary, in_dims=dims)(*tensors), (0,) * count
        z = [
            t.expand(info.batch_size, *t.shape) if d is None else t.movedim(d, 0)
            for t, d in zip(tensors[:count], dims, strict=False)
        ]
        wider = replace(call, points=call.points * info.batch_size)
        return tuple(wider((*z, *tensors[count:]))), (0,) * count


@dataclass
class _Call:
    """What a call consists of beside its tensors: z first, then the leaves of what is prepared."""

    g: Pass
    points: int
    count: int
    tree: Tree
    trace: Any = None

    def forward(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], Any]:
        z = [t.reshape(self.points, -1) for t in tensors[: self.count]]
        phi, trace = self.g.forward_pass(z, self._prepared(tensors))
        return [p.reshape(t.shape) for p, t in zip(phi, tensors, strict=False)], trace

    def backward(
        self, grads: Sequence[Tensor], tensors: Sequence[Tensor]
    ) -> Iterator[Tensor | None]:
        flat = [grad.reshape(self.points, -1) for grad in grads]
        to_z, to_prepared = self.g.backward_pass(flat, self._prepared(tensors), self.trace)
        for found, t in zip(to_z, tensors, strict=False):
            yield None if found is None else found.reshape(t.shape)
        yield from tensors_in(to_prepared)

    def _prepared(self, tensors: Sequence[Tensor]) -> Tree:
        return with_tensors(self.tree, tensors[self.count :])

    def __call__(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        if torch.is_grad_enabled() and only_vmap():
            found: Sequence[Tensor] = _OnePass.apply(self, *tensors)  # type: ignore[no-untyped-call]
            return found
        return self.forward(tensors)[0]


def one_operation(g: Pass, z: Sequence[Tensor], prepared: Tree) -> list[Tensor]:
    """Return phi for z, tensor by tensor, of a map that is given as its two passes."""
    call = _Call(g, 1, len(z), prepared)
    return list(call((*z, *tensors_in(prepared))))
