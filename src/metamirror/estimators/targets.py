"""The values that a regressor learns."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor


def as_targets(y: Any, count: int) -> tuple[Tensor, bool]:
    """(examples, values) in double precision, and whether there was one axis only.

    >>> as_targets([1, 2], 2)
    (tensor([[1.],
            [2.]], dtype=torch.float64), True)
    """
    if y is None:
        raise ValueError(
            "requires y to be passed, but the target y is None: give a value for each example"
        )
    if isinstance(y, Tensor):
        y = y.detach().cpu().double().numpy()
    array = np.asarray(y)
    if array.dtype.kind == "c":
        raise ValueError(f"Complex data not supported: y is {array.dtype}")
    try:
        array = array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"y does not consist of numbers: {error}") from error
    if array.ndim not in (1, 2) or len(array) != count:
        raise ValueError(
            f"y has shape {array.shape} for {count} examples; give a number for each, or a row"
        )
    finite = np.isfinite(array)
    if not finite.all():
        where = tuple(int(i) for i in np.argwhere(~finite)[0])
        raise ValueError(f"y holds NaN or inf, first {array[where]} at index {where}")
    return torch.from_numpy(array.reshape(count, -1)), array.ndim == 1
