"""Labels of any kind, and the outputs of a network that stand for them."""

import contextlib
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from metamirror.core.learner import Learner
from metamirror.core.losses import loss_for
from metamirror.core.tasks import Loss


def as_labels(y: Any, count: int | None = None) -> list[Hashable]:
    """Return one label for each of `count` examples, as plain Python values where numpy has them.

    >>> as_labels(np.array(["cat", "dog"]), 2)
    ['cat', 'dog']
    """
    if y is None:
        raise ValueError(
            "requires y to be passed, but the target y is None: give a label for each example"
        )
    if hasattr(y, "__array__"):
        array = y.detach().cpu().numpy() if isinstance(y, Tensor) else np.asarray(y)
        if array.ndim != 1:
            raise ValueError(
                f"y has shape {array.shape}; give one label for each example: y.ravel(), or "
                f"y.argmax(1) where it holds indicators"
            )
        y = array.tolist()
    if isinstance(y, str) or not isinstance(y, Sequence):
        raise ValueError(f"y is {y!r}; give a list with one label for each example")
    if count not in (None, len(y)):
        raise ValueError(f"X has {count} examples and y has {len(y)} labels; give one for each")
    scalars = (np.generic, np.ndarray, Tensor)
    labels = [v.item() if isinstance(v, scalars) and v.ndim == 0 else v for v in y]
    for i, label in enumerate(labels):
        # Tensors hash by identity: no two of them would be one class.
        if isinstance(label, Tensor):
            raise ValueError(
                f"y[{i}] is a tensor of shape {tuple(label.shape)}: give one label for each example"
            )
        try:
            hash(label)
        except TypeError as error:
            raise ValueError(
                f"y[{i}] is {label!r}, which has no hash: labels are words, numbers or tuples"
            ) from error
        if isinstance(label, float) and not math.isfinite(label):
            raise ValueError(f"y[{i}] is NaN or inf, which names no class: remove that example")
    return labels


def classes_of(labels: Sequence[Hashable], ways: int | None = None) -> NDArray[Any]:
    """Return the 2 to `ways` different labels, in order where they have one, else as they come.

    Without `ways` there may be any number.

    >>> classes_of(["b", "a", "b"], 5)
    array(['a', 'b'], dtype='<U1')
    """
    found: list[Any] = list(dict.fromkeys(labels))
    with contextlib.suppress(TypeError):
        found = sorted(found)
    count = len(found)
    if count < 2:
        raise ValueError(
            f"y has one class, {found[0]!r}: at least 2 classes are needed to tell apart"
        )
    if ways is not None and count > ways:
        names = ", ".join(map(repr, found[:8]))
        raise ValueError(
            f"y has {count} classes ({names}{', ...' if count > 8 else ''}), and this start tells "
            f"at most {ways} apart: leave some out, or train one with metamirror train --ways "
            f"{count}; those of --method protonet, protomaml, r2d2, metaoptnet or maml:start=ridge "
            f"take any number. If y is continuous, use FewShotRegressor"
        )
    return _as_array(found)


def _as_array(labels: list[Any]) -> NDArray[Any]:
    """Return labels as numpy has them, or as objects where it would change them."""
    kinds = {type(label) for label in labels}
    if len(kinds) == 1 and kinds <= {str, int, float, bool}:
        array = np.array(labels)
        # Neither whole numbers beyond 64 bits, nor words whose last letter is zero.
        if array.dtype.kind in "Uifb" and array.tolist() == labels:
            return array
    objects = np.empty(len(labels), dtype=object)
    objects[:] = labels
    return objects


@dataclass(frozen=True)
class FirstOutputs:
    """The loss over the first outputs, the task's classes; the others are not pushed down."""

    count: int
    loss: Loss | None

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        return (self.loss or loss_for(target))(output[:, : self.count], target)


def own_loss(learner: Learner) -> Loss | None:
    """Return the loss that a learner was made with, if it was given one."""
    loss = learner.settings.loss
    return loss.loss if isinstance(loss, FirstOutputs) else loss


def classes_to_json(classes: NDArray[Any]) -> list[Any]:
    """Return labels as a file holds them; refuse those that would come back as something else."""
    labels: list[Any] = classes.tolist()
    for label in labels:
        if not isinstance(label, str | int | float | bool | None):
            raise ValueError(
                f"the label {label!r} is a {type(label).__name__}, which a file cannot hold: fit "
                f"with words or numbers for labels before saving"
            )
    return labels


def classes_from_json(labels: Any) -> NDArray[Any]:
    """Return the classes of which `classes_to_json` made the labels, in the same order."""
    if not isinstance(labels, list) or len(labels) < 2:
        raise ValueError(f"its classes are {labels!r}")
    if len(set(as_labels(labels))) != len(labels):
        raise ValueError("a class is named twice")
    return _as_array(labels)
