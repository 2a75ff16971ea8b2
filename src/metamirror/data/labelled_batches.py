"""Batches of labelled examples: all classes of a split at once, in place of tasks."""

import numpy as np
import torch
from numpy.typing import NDArray

from metamirror.core.tasks import Batch
from metamirror.data.addressing import task_generator
from metamirror.data.image_set import ImageSet
from metamirror.data.image_tasks import Augment, as_numbers, augmented, turn


class LabelledBatches:
    """`batches[step]` has `batch` examples with the number of their class among those of the split.

    Each epoch is a permutation of its own of all examples, of which those that fill no batch are
    left out. Order and augmentation are functions of seed and step alone, so that resuming is
    exact.

    Args:
        images: the data set.
        split: train, val or test.
        batch: examples of a step; fewer where there are not as many.
        seed: of the order and the augmentation.
        augment: changes to images, as in `metamirror.data.tasks`.
    """

    def __init__(
        self,
        images: ImageSet,
        split: str = "train",
        *,
        batch: int,
        seed: int,
        augment: Augment | None = None,
    ):
        classes = images.of(split)
        if len(classes) < 2:
            raise ValueError(
                f"the {split} split of {images.name} has {len(classes)} classes; a classifier "
                f"needs at least 2"
            )
        self.images, self.split, self.seed, self.augment = images, split, seed, augment
        self.classes = len(classes)
        counts = [c.count for c in classes]
        self._rows = np.concatenate([np.arange(c.start, c.start + c.count) for c in classes])
        self._labels = np.repeat(np.arange(len(classes)), counts)
        self._turns = np.repeat([c.turns for c in classes], counts)
        self.batch = min(batch, len(self._rows))
        self.per_epoch = len(self._rows) // self.batch

    def __getitem__(self, step: int) -> Batch:
        chosen = self.places(step)
        examples = self.images.read(self._rows[chosen])
        turn(examples, self._turns[chosen])
        if self.augment is not None:
            random = task_generator(self.seed, self.split, step, 0, "augmentation")
            examples = augmented(examples, self.augment, random)
        return Batch(as_numbers(examples), torch.from_numpy(self._labels[chosen]))

    def places(self, step: int) -> NDArray[np.int64]:
        """Return which examples a step has, by their place among those of the split."""
        epoch, number = divmod(step, self.per_epoch)
        random = task_generator(self.seed, self.split, epoch, 0, "order")
        order = random.permutation(len(self._rows))
        return order[number * self.batch : (number + 1) * self.batch]
