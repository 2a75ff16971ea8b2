"""Few-shot classification tasks drawn from a set of examples, and changes to images."""

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from metamirror.core.tasks import Batch, Task, Tasks, split_tasks
from metamirror.data.addressing import task_generator
from metamirror.data.image_set import ImageSet, Pixels
from metamirror.data.sizes import Count, as_range
from metamirror.data.task_stream import TaskStream

Numbers = NDArray[np.int64]
Augment = Callable[[Pixels, np.random.Generator], Pixels]
"""(images of one task in bytes, its own generator) -> images of the same shape."""


class ImageTasks(TaskStream):
    """Tasks of `ways` classes, each with `shots` support and `queries` query examples.

    Classes and examples are drawn without replacement. The label of a class is its place in the
    draw, so that it says nothing from one task to the next. Of a range of ways or shots each task
    draws its own, uniformly, and is then the task that fixed ones would give. The arguments are
    those of `metamirror.data.tasks`; by default nothing is augmented, as in the paper.
    """

    def __init__(
        self,
        images: ImageSet,
        split: str,
        *,
        ways: Count | tuple[int, int],
        shots: Count | tuple[int, int],
        queries: int,
        seed: int,
        batch: int,
        augment: Augment | None = None,
    ):
        self.ways, self.shots_range = as_range("ways", ways), as_range("shots", shots)
        super().__init__(split, self.shots_range[1], queries, seed, batch)
        self.images, self.classes, self.augment = images, images.of(split), augment
        self.ragged = any(low < high for low, high in (self.ways, self.shots_range))
        if self.ways[0] < 2:
            raise ValueError(f"ways is {ways}; a task needs at least 2 classes")
        if self.ways[1] > len(self.classes):
            raise ValueError(
                f"ways is {ways}, but the {split} split of {images.name} has "
                f"{len(self.classes)} classes: lower ways, or add classes"
            )
        few = min(self.classes, key=lambda c: c.count)
        if few.count < self.shots + queries:
            raise ValueError(
                f"class {few.name!r} of {images.name} has {few.count} examples, but shots + "
                f"queries is {self.shots} + {queries}: lower them, or add examples to that class"
            )
        self.outputs, self.identity = self.ways[1], images.identity
        self.example_shape = tuple(images.pixels.shape[1:])
        numbers = np.array([(c.count, c.start, c.turns) for c in self.classes])
        self._counts, self._starts, self._turns = numbers.T.copy()

    @property
    def chance(self) -> float:
        low, high = self.ways
        return sum(1 / ways for ways in range(low, high + 1)) / (high + 1 - low)

    def sizes(self, step: int, index: int) -> tuple[int, int]:
        """Return ways and shots of a task: fixed, or drawn with it."""
        if not self.ragged:
            return self.outputs, self.shots
        random = task_generator(self.seed, self.split, step, index, "sizes")
        ways, shots = (
            int(random.integers(low, high, endpoint=True))
            for low, high in (self.ways, self.shots_range)
        )
        return ways, shots

    def draw(self, step: int, indices: Sequence[int]) -> tuple[Numbers, Numbers]:
        """Draw tasks as numbers: classes (tasks, ways) and rows (tasks, ways, shots + queries).

        All must have the sizes of the first: where each draws its own, give one.
        """
        ways, shots = self.sizes(step, indices[0] if len(indices) else 0)
        each = shots + self.queries
        classes = np.empty((len(indices), ways), np.int64)
        keys = np.empty((len(indices), ways, int(self._counts.max())))
        for i, index in enumerate(indices):
            random = task_generator(self.seed, self.split, step, index)
            classes[i] = random.choice(len(self.classes), ways, replace=False)
            random.random(out=keys[i])
        # The images with the smallest random keys: drawing without replacement, in one go.
        keys[np.arange(keys.shape[-1]) >= self._counts[classes, None]] = 2.0
        rows = np.argpartition(keys, each - 1)[..., :each]
        order = np.take_along_axis(keys, rows, -1).argsort()
        return classes, np.take_along_axis(rows, order, -1) + self._starts[classes, None]

    def names(self, step: int, index: int) -> list[str]:
        """Return the names of the classes of a task, by label."""
        return [self.classes[c].name for c in self.draw(step, [index])[0][0]]

    def task(self, step: int, index: int) -> Task:
        return split_tasks(self._alike(step, [index]))[0]

    def stack(self, step: int, indices: Iterable[int]) -> Tasks:
        indices = list(indices)
        if self.ragged:
            return [self.task(step, index) for index in indices]
        return self._alike(step, indices)

    def _alike(self, step: int, indices: Sequence[int]) -> Task:
        """Return tasks of the same sizes in one go."""
        classes, rows = self.draw(step, indices)
        images = self.images.read(rows)
        turn(images, self._turns[classes])
        if self.augment is not None:
            shape = (rows.shape[1] * rows.shape[2], *self.example_shape)
            for i, index in enumerate(indices):
                random = task_generator(self.seed, self.split, step, index, "augmentation")
                changed = augmented(images[i].reshape(shape).copy(), self.augment, random)
                images[i] = changed.reshape(images[i].shape)
        shots = rows.shape[2] - self.queries
        support, query = images[:, :, :shots], images[:, :, shots:]
        return Task(self._batch(support), self._batch(query))

    def _batch(self, examples: NDArray[Any]) -> Batch:
        tasks, ways, each = examples.shape[:3]
        x = as_numbers(examples.reshape(tasks, ways * each, *self.example_shape))
        y = torch.arange(ways).repeat_interleave(each).repeat(tasks, 1)
        return Batch(x, y)


def as_numbers(examples: NDArray[Any]) -> Tensor:
    """Return what a model takes: bytes are pixels, scaled to [0, 1]; other integers are tokens.

    >>> as_numbers(np.array([[3, 5]], np.int32))
    tensor([[3, 5]])
    """
    if examples.dtype == np.uint8:
        return torch.from_numpy(examples).to(torch.float32).div_(255)
    whole = examples.dtype.kind in "iu"
    return torch.from_numpy(examples.astype(np.int64 if whole else np.float32))


def turn(images: NDArray[Any], turns: Numbers) -> None:
    """Rotate images by quarter turns, in place; `turns` has a number for each, or for a group."""
    for count in (1, 2, 3):
        if (turned := turns == count).any():
            images[turned] = np.rot90(images[turned], count, axes=(-2, -1))


def augmented(images: NDArray[Any], augment: Augment, random: np.random.Generator) -> NDArray[Any]:
    """Return changed images; refuse a change of their type or shape."""
    shape, dtype = images.shape, images.dtype
    changed = augment(images, random)
    if changed.shape != shape or changed.dtype != dtype:
        raise ValueError(
            f"augment gave {changed.dtype} {changed.shape} for {dtype} {shape}; it must keep type "
            f"and shape"
        )
    return changed


def flip(images: Pixels, random: np.random.Generator) -> Pixels:
    """Mirror each image left to right with probability 1/2."""
    mirrored = random.random(len(images)) < 0.5
    images[mirrored] = images[mirrored, :, :, ::-1]
    return images


def shift(images: Pixels, random: np.random.Generator) -> Pixels:
    """Move each image by up to a tenth of its size; the edge is repeated."""
    reach = max(1, images.shape[-1] // 10)
    padded = np.pad(images, ((0, 0), (0, 0), (reach, reach), (reach, reach)), mode="edge")
    height, width = images.shape[2:]
    for i, (top, left) in enumerate(random.integers(0, 2 * reach + 1, (len(images), 2))):
        images[i] = padded[i, :, top : top + height, left : left + width]
    return images


def colour(images: Pixels, random: np.random.Generator) -> Pixels:
    """Multiply brightness, contrast and saturation of each image by factors in 0.6 .. 1.4."""
    bright, contrast, saturation = random.uniform(0.6, 1.4, (3, len(images), 1, 1, 1))
    changed = images * bright.astype(np.float32)
    for factor, axes in ((contrast, (1, 2, 3)), (saturation, 1)):
        mean = changed.mean(axes, keepdims=True)
        changed = mean + (changed - mean) * factor.astype(np.float32)
    found: Pixels = changed.round().clip(0, 255).astype(images.dtype)
    return found


AUGMENTATIONS: dict[str, Augment] = {"flip": flip, "shift": shift, "colour": colour}


def augmentation(names: str) -> Augment | None:
    """Return the changes named, one after the other, as in `flip,shift`; `none` for none.

    >>> augmentation("none") is None
    True
    """
    if names == "none":
        return None
    words = [word.strip() for word in names.split(",")]
    for name in words:
        if name not in AUGMENTATIONS:
            raise ValueError(
                f"augment is {names!r}: no change is called {name!r}; choose from "
                f"{', '.join(AUGMENTATIONS)}, with commas between them, or none"
            )
    return lambda images, random: reduce(
        lambda changed, name: AUGMENTATIONS[name](changed, random), words, images
    )
