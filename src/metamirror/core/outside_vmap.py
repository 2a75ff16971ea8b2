"""A way out of `torch.func.vmap` for a moment, to the stacked tensors themselves."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

Stacked = Callable[[int, Sequence[int | None], Sequence[Tensor]], tuple[Any, Any]]
"""(how many tasks, each tensor's task axis or None, tensors) -> (results, their task axes)."""


def outside_vmap(function: Stacked, *tensors: Tensor) -> Any:
    """Call a function on the stacked tensors of the innermost vmap, and go on inside it.

    At least one tensor has to be stacked. Autograd records what the function does as it records
    anything else, and its graph is differentiated without torch.func: with less overhead, and by
    torch's own second derivatives. A tensor that the function takes from around it is seen by a
    vmap of the function's own as it was seen outside.
    """
    return _Outside.apply(function, *tensors)  # type: ignore[no-untyped-call]


class _Outside(Function):
    """Nothing but a rule for vmap, under which torch calls it with the stacked tensors."""

    @staticmethod
    def forward(function: Stacked, *tensors: Tensor) -> Any:
        raise RuntimeError("none of the tensors is stacked by torch.func.vmap")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Torch asks for it beside a rule for vmap."""

    @staticmethod
    def vmap(info: Any, in_dims: Any, function: Stacked, *tensors: Tensor) -> tuple[Any, Any]:
        return function(info.batch_size, in_dims[1:], tensors)


def only_vmap() -> bool:
    """Return whether no transform of `torch.func` is active but vmap, if any."""
    functorch = torch._C._functorch
    stack = functorch.get_interpreter_stack()
    return all(level.key() == functorch.TransformType.Vmap for level in stack or ())
