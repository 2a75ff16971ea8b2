"""Inner steps whose graph is built again when the outer level needs it: memory for time.

A path of K steps then holds K sets of parameters and the graph of one step, instead of K graphs.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.utils.checkpoint import get_device_states, set_device_states

from metamirror.core.trees import tensors_in, with_tensors


def recomputed(function: Callable[..., Any], *args: Any, through: Sequence[Tensor]) -> Any:
    """Return function(*args) without keeping the graph in between.

    Args:
        function: gives nested tensors, and always the same for the same arguments.
        *args: nested tensors.
        through: leaves that the function uses beside its arguments and that need a gradient.
    """
    # What the results look like is known only when the function has run.
    found: list[Any] = []
    tensors = _Recomputed.apply(  # type: ignore[no-untyped-call]
        function, args, found, len(tensors_in(args)), *tensors_in(args), *through
    )
    return with_tensors(found[0], tensors)


class _Recomputed(Function):
    @staticmethod
    def forward(
        ctx: Any,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        found: list[Any],
        count: int,
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        ctx.function, ctx.args, ctx.count = function, with_tensors(args, tensors), count
        # A layer that draws noise has to draw the same again.
        ctx.random = torch.get_rng_state(), *get_device_states(*tensors)
        ctx.save_for_backward(*tensors[:count])
        ctx.through = tensors[count:]
        ctx.set_materialize_grads(False)
        found.append(function(*args))
        return tuple(t.detach() for t in tensors_in(found[0]))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "the meta-gradient of rematerialised steps cannot be differentiated again: choose "
                "the adjoint unrolled"
            )
        own = [t.detach().requires_grad_(t.requires_grad) for t in ctx.saved_tensors]
        state, devices, device_states = ctx.random
        with torch.enable_grad(), torch.random.fork_rng(devices):
            torch.set_rng_state(state)
            set_device_states(devices, device_states)
            results = tensors_in(ctx.function(*with_tensors(ctx.args, own)))
        reached = [
            (result, grad)
            for result, grad in zip(results, grads, strict=True)
            if grad is not None and result.requires_grad
        ]
        inputs = [*own, *ctx.through]
        wanted = [t for t in inputs if t.requires_grad]
        found = iter(
            torch.autograd.grad(
                [result for result, _ in reached],
                wanted,
                [grad for _, grad in reached],
                allow_unused=True,
            )
        )
        return None, None, None, None, *(next(found) if t.requires_grad else None for t in inputs)
