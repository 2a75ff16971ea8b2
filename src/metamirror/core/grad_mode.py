"""Differentiating where the caller has switched gradients off."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


@contextmanager
def differentiable() -> Iterator[None]:
    """Leave `torch.inference_mode`, under which nothing can be differentiated.

    The inner loop needs gradients of its own. The caller's are as under `torch.no_grad` instead.

    >>> with torch.inference_mode(), differentiable():
    ...     torch.is_inference_mode_enabled(), torch.is_grad_enabled()
    (False, False)
    """
    if not torch.is_inference_mode_enabled():
        # To enter inference_mode(False) there would switch gradients on.
        yield
        return
    with torch.inference_mode(False), torch.no_grad():
        yield


def check_mode() -> None:
    """Refuse to run the inner loop where its gradients cannot be taken."""
    if torch.is_inference_mode_enabled():
        raise ValueError(
            "the inner loop takes gradients, which torch.inference_mode rules out: use "
            "torch.no_grad, or the methods of Learner, which leave that mode"
        )


def check_ordinary(parameter: Tensor) -> Tensor:
    """Return a learner's parameter; refuse one that was made under `torch.inference_mode`."""
    if parameter.is_inference():
        raise ValueError(
            "the learner's parameters were made under torch.inference_mode, and cannot be "
            "differentiated: make or load model and learner outside of it"
        )
    return parameter
