"""Arrays of numbers: the examples of a network that takes no images, and a regressor's targets."""

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class Numbers:
    """Reads arrays and tensors of any shape as they are.

    `integers` leaves whole numbers whole, for a network that looks up words or places by them.
    """

    integers: bool = False

    def read(self, x: Any) -> Tensor:
        """Return (examples, ...) in double precision; whole numbers perhaps as they are.

        >>> Numbers().read([[1, 2], [3, 4]])
        tensor([[1., 2.],
                [3., 4.]], dtype=torch.float64)
        """
        array = as_doubles(x, "X")
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
        if self.integers and as_array(x, "X").dtype.kind in "iu":
            return torch.from_numpy(array).long()
        return torch.from_numpy(array)


def as_targets(y: Any, count: int) -> tuple[Tensor, bool]:
    """Return (examples, values) in double precision, and whether y had one axis only.

    >>> as_targets([1, 2], 2)
    (tensor([[1.],
            [2.]], dtype=torch.float64), True)
    """
    if y is None:
        raise ValueError(
            "requires y to be passed, but the target y is None: give a value for each example"
        )
    array = as_doubles(y, "y")
    if array.ndim not in (1, 2) or len(array) != count:
        raise ValueError(
            f"y has shape {array.shape} for {count} examples; give a number for each, or a row"
        )
    return torch.from_numpy(array.reshape(count, -1)), array.ndim == 1


def as_doubles(values: Any, name: str) -> NDArray[np.float64]:
    """Return an array of finite numbers, or raise a ValueError that says what else there is."""
    array = as_array(values, name)
    if array.size and isinstance(array.flat[0], os.PathLike):
        raise ValueError(
            f"{name} does not consist of numbers, which this start takes, but of files, such as "
            f"{array.flat[0]}: choose a start for images, or read them first"
        )
    try:
        array = array.astype(np.float64)
    except (TypeError, ValueError) as error:
        if name == "X" and isinstance(error, TypeError):
            raise  # which scikit-learn's checks expect
        raise ValueError(f"{name} does not consist of numbers: {error}") from error
    check_finite(array, name)
    return array


def as_array(values: Any, name: str) -> NDArray[Any]:
    """Return an array of anything but complex numbers."""
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        # numpy does not know every type of torch.
        values = (values.double() if values.is_floating_point() else values).numpy()
    if hasattr(values, "toarray"):
        raise ValueError(f"{name} is a sparse matrix; give a dense array: {name}.toarray()")
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise ValueError(f"{name} does not make an array: {error}") from error
    if array.dtype.kind == "c":
        raise ValueError(f"Complex data not supported: {name} is {array.dtype}")
    return array


def check_finite(array: NDArray[Any], name: str) -> None:
    """Refuse NaN and infinity."""
    finite = np.isfinite(array)
    if not finite.all():
        where = tuple(int(i) for i in np.argwhere(~finite)[0])
        raise ValueError(f"{name} holds NaN or inf, first {array[where]} at index {where}")


def check_flag(name: str, value: Any) -> None:
    """Refuse what is neither True nor False; searches hand in numpy's."""
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"{name} is {value!r}; give True or False")
