"""Derivatives against central differences, and other means that the checks share."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor


def require(condition: bool, message: str) -> None:
    """Raise AssertionError with the message unless the condition holds, also under `python -O`."""
    if not condition:
        raise AssertionError(message)


@contextmanager
def named(what: str, way_out: str) -> Iterator[None]:
    """Turn an error inside the block into an AssertionError that says what fails."""
    try:
        yield
    except (RuntimeError, KeyError, TypeError) as error:
        words = f"{type(error).__name__}: {error}".splitlines()[0]
        raise AssertionError(f"{what}: {way_out}. {words}") from error


def move(tensors: Sequence[Tensor], by: float, seed: int) -> list[Tensor]:
    """Add a multiple of a random direction to the tensors, in place, and return the direction."""
    random = torch.Generator().manual_seed(seed)
    direction = [torch.randn(t.shape, generator=random, dtype=torch.float64) for t in tensors]
    with torch.no_grad():
        for tensor, d in zip(tensors, direction, strict=True):
            tensor.add_(d.to(tensor), alpha=by)
    return direction


def check_slope(
    value: Callable[[], Tensor],
    tensors: Sequence[Tensor],
    grads: Sequence[Tensor],
    what: str,
    tolerance: float = 1e-6,
    step: float = 1e-6,
) -> None:
    """Compare a gradient, along a random direction, with central differences of its value.

    `value` recomputes the scalar from the tensors, in float64, which are moved and put back; the
    tolerance is relative to the gradient's length, and `step` how far they are moved.
    """
    before = [t.detach().clone() for t in tensors]
    ends = []
    for by in (step, -step):
        direction = move(tensors, by, seed=3)
        ends.append(value().item())
        with torch.no_grad():
            for tensor, old in zip(tensors, before, strict=True):
                tensor.copy_(old)
    slope = (ends[0] - ends[1]) / (2 * step)
    found = sum(float((g * d).sum()) for g, d in zip(grads, direction, strict=True))
    scale = max(abs(slope), sum(float(g.square().sum()) for g in grads) ** 0.5)
    require(
        abs(found - slope) <= tolerance * scale,
        f"{what} is wrong: along a random direction autograd gives {found:.9g} and central "
        f"differences give {slope:.9g}. Look for a detach(), an operation in place, or a backward "
        f"pass written by hand",
    )
