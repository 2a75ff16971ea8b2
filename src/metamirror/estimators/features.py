"""Examples of a network that takes no pictures: numbers, of any shape."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Features:
    """Reads arrays and tensors as they are; a type of its own beside `Pictures`."""

    def read(self, x: Any) -> Tensor:
        """(examples, ...) in double precision.

        >>> Features().read([[1, 2], [3, 4]])
        tensor([[1., 2.],
                [3., 4.]], dtype=torch.float64)
        """
        if isinstance(x, Tensor):
            x = x.detach().cpu().double().numpy()
        if hasattr(x, "toarray"):
            raise ValueError("X is a sparse matrix; this model takes dense numbers: X.toarray()")
        array = np.asarray(x)
        if array.dtype.kind == "c":
            raise ValueError(f"Complex data not supported: X is {array.dtype}")
        if array.size and isinstance(array.flat[0], os.PathLike):
            raise ValueError(
                f"X does not consist of numbers, which this start takes, but of files, such as "
                f"{array.flat[0]}: choose a start for pictures, or read them first"
            )
        try:
            array = array.astype(np.float64)
        except ValueError as error:
            raise ValueError(f"X does not consist of numbers: {error}") from error
        if array.ndim < 2:
            raise ValueError(
                f"X has shape {array.shape}; one row for each example is needed. Reshape your data "
                f"with X.reshape(-1, 1) if it has a single feature, or X.reshape(1, -1) if it is a "
                f"single example"
            )
        if 0 in array.shape:
            # In scikit-learn's words, which its tools look for.
            what = "sample(s)" if not array.shape[0] else "feature(s)"
            raise ValueError(f"0 {what} (shape={array.shape}) while a minimum of 1 is required.")
        finite = np.isfinite(array)
        if not finite.all():
            where = tuple(int(i) for i in np.argwhere(~finite)[0])
            raise ValueError(f"X holds NaN or inf, first {array[where]} at index {where}")
        return torch.from_numpy(array)
