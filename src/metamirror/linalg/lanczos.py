"""The ends of a symmetric operator's spectrum, by Lanczos, from products with it alone."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from metamirror.core.tasks import Params
from metamirror.linalg.tensor_stacks import flat, unflat


@dataclass(frozen=True)
class Spectrum:
    """The extreme eigenvalues of an operator, as far as Lanczos has come.

    Attributes:
        low: the smallest Rayleigh quotient found.
        high: the largest one.
        low_error: an eigenvalue lies within this distance of `low`.
        vector: the direction that belongs to `low`, of length one.
    """

    low: float
    high: float
    low_error: float
    vector: Params


def lanczos(operator: Callable[[Params], Params], start: Params, iterations: int) -> Spectrum:
    """Return the extreme eigenvalues of a symmetric operator on parameter dicts.

    Both are Rayleigh quotients, so they do not lie outside the true spectrum by more than rounding.
    Every new direction is made orthogonal to all before it: with so few of them that is cheap,
    and it keeps rounding from producing spurious copies. Stops early once both ends are settled.

    >>> rates = torch.tensor([0.5, 1.0, 2.0])
    >>> found = lanczos(lambda v: {"w": rates * v["w"]}, {"w": torch.ones(3)}, iterations=10)
    >>> round(found.low, 6), round(found.high, 6)
    (0.5, 2.0)
    """
    like = next(iter(start.values()))
    # Apple's GPUs have no double precision.
    precise = torch.float32 if like.device.type == "mps" else torch.float64
    eps = torch.finfo(like.dtype).eps
    first = flat(start).to(precise)
    basis = (first / first.norm()).unsqueeze(0)
    projected = basis.new_zeros(0, 0)
    length, size = first.norm(), 0.0
    while True:
        image = flat(operator(unflat(basis[-1].to(like.dtype), start))).to(precise)
        size = max(size, float(image.norm()))
        # The operator within the basis is tridiagonal: the last direction adds a row and column.
        projected = torch.nn.functional.pad(projected, (0, 1, 0, 1))
        projected[-1, -1] = image @ basis[-1]
        if len(basis) > 1:
            projected[-1, -2] = projected[-2, -1] = length
        for _ in range(2):
            image = image - basis.T @ (basis @ image)
        length = image.norm()
        values, vectors = torch.linalg.eigh(projected)
        # An eigenvalue lies within `errors` of each end.
        errors = (length * vectors[-1].abs()).tolist()
        settled = len(basis) >= 8 and all(
            errors[i] <= 1e-3 * abs(float(values[i])) for i in (0, -1)
        )
        # What is left after projection is rounding: the directions found are all there are.
        exhausted = float(length) <= 100 * eps * size or len(basis) == first.numel()
        if exhausted or settled or len(basis) == iterations:
            break
        basis = torch.cat([basis, (image / length).unsqueeze(0)])
    return Spectrum(
        low=float(values[0]),
        high=float(values[-1]),
        low_error=0.0 if exhausted else errors[0],
        vector=unflat((basis.T @ vectors[:, 0]).to(like.dtype), start),
    )
