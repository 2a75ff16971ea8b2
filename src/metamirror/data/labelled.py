"""Labelled examples of the user's own, as a set from which tasks are drawn."""

import hashlib
import threading
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from metamirror.core.files import to_json
from metamirror.data.class_splits import given_splits, seeded_splits
from metamirror.data.image_set import ImageClass, ImageSet

SAMPLED = 64
"""Examples that count in a checksum: reading all would take as long as a first epoch."""


class Rows:
    """Examples that are read when they are needed, indexed by rows as an array is.

    Args:
        name: what an error calls them.
        count: how many there are.
        read: (rows) -> an example for each: an array, a tensor, an image, or a list of numbers.
    """

    def __init__(self, name: str, count: int, read: Callable[[list[int]], Iterable[Any]]):
        self.name, self._read = name, read
        # A reader that keeps a file open is asked by one thread at a time.
        self._lock = threading.Lock()
        (first,) = read([0])
        example = as_example(first, f"{name}, example 0")
        self.shape, self.dtype = (count, *example.shape), example.dtype

    def __getitem__(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        flat = rows.ravel().tolist()
        found = np.empty((len(flat), *self.shape[1:]), self.dtype)
        with self._lock:
            for i, (row, item) in enumerate(zip(flat, self._read(flat), strict=True)):
                example = as_example(item, f"{self.name}, example {row}")
                if (example.shape, example.dtype) != (self.shape[1:], self.dtype):
                    raise ValueError(
                        f"{self.name}: example {row} is {example.dtype} {example.shape}, and the "
                        f"first is {self.dtype} {self.shape[1:]}; all must be alike: resize, crop "
                        f"or pad them"
                    )
                found[i] = example
        return found.reshape(*rows.shape, *self.shape[1:])


def labelled_set(
    name: str,
    examples: Any,
    labels: Any,
    *,
    splits: Any = None,
    split_seed: int = 0,
    names: Callable[[Any], str] = str,
    checksum: str = "",
) -> ImageSet:
    """Return examples and their labels as a set, with a split of the classes.

    Args:
        name: what an error calls it.
        examples: an array (examples, ...), or `Rows`.
        labels: a whole number or a word for each.
        splits: of the classes, as in `given_splits`; by default drawn.
        split_seed: the seed of that draw.
        names: of the classes, by label.
        checksum: of the examples, where there is one.
    """
    values = as_labels(labels, examples.shape[0], name)
    classes, codes, counts = np.unique(values, return_inverse=True, return_counts=True)
    known = classes.tolist()
    if splits is not None:
        own = given_splits(splits, known, codes)
    elif len(known) < 3:
        raise ValueError(
            f"{name} has {len(known)} classes; train, val and test need one at least: add classes, "
            f"or say with splits which split they are of"
        )
    else:
        own = seeded_splits(len(known), split_seed)
    starts = np.cumsum(counts) - counts
    made = tuple(
        ImageClass(names(label), split, int(start), int(count))
        for label, split, start, count in zip(known, own, starts, counts, strict=True)
    )
    order = np.argsort(codes, kind="stable")
    facts = [[asdict(c) for c in made], list(examples.shape), str(examples.dtype), checksum]
    digest = hashlib.sha256(to_json(facts).encode(errors="surrogateescape"))
    digest.update(order.tobytes())
    sample = np.linspace(0, len(order) - 1, min(len(order), SAMPLED)).astype(np.int64)
    digest.update(examples[sample].tobytes())
    return ImageSet(name, examples, made, digest.hexdigest(), order)


def as_labels(labels: Any, count: int, name: str) -> NDArray[Any]:
    """Return a whole number or a word for each of `count` examples."""
    values = np.asarray(labels.detach().cpu() if isinstance(labels, Tensor) else labels)
    if values.shape != (count,):
        raise ValueError(f"{name}: y has shape {values.shape} for {count} examples; give one each")
    if values.dtype == object and all(isinstance(value, str) for value in values):
        values = values.astype(str)
    if values.dtype.kind not in "biuUT":
        raise ValueError(
            f"{name}: y holds {values.dtype}; labels are whole numbers or words. Regression tasks "
            f"come from a class of yours with a method task(step, index)"
        )
    return values


def as_examples(x: Any, name: str) -> NDArray[Any]:
    """Return an array (examples, ...) of numbers; images have their channels first."""
    array = _array(x, name)
    if array.ndim < 2 or 0 in array.shape:
        raise ValueError(
            f"{name}: x has shape {array.shape}; give (examples, features), or (examples, ...)"
        )
    if array.dtype != np.uint8:
        return array
    if array.ndim == 3:
        return array[:, None]
    last = array.ndim == 4 and array.shape[1] not in (1, 3) and array.shape[3] in (1, 3)
    return np.moveaxis(array, 3, 1) if last else array


def as_example(item: Any, name: str) -> NDArray[Any]:
    """Return one example as an array, as `as_examples` would."""
    if type(item).__module__.startswith("PIL."):
        from metamirror.data.readers.images import pixels_of

        item = pixels_of(item, name, 1 if item.mode in ("1", "L", "LA", "I;16", "I") else 3)
    found: NDArray[Any] = as_examples(np.atleast_1d(_array(item, name))[None], name)[0]
    return found


def _array(x: Any, name: str) -> NDArray[Any]:
    if isinstance(x, Tensor):
        x = x.detach().cpu()
        # numpy does not know every type of torch.
        x = (x.float() if x.dtype == torch.bfloat16 else x).numpy()
    try:
        array = np.asarray(x)
    except ValueError as error:
        raise ValueError(
            f"{name}: x makes no array ({error}); all examples need one shape: pad or crop them"
        ) from error
    if array.dtype.kind not in "biuf":
        raise ValueError(
            f"{name}: x holds {array.dtype}; give numbers, such as embeddings, pixels or tokens"
        )
    return array
