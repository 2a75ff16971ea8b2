"""Tasks that the user's own code makes: an object with `task(step, index)`, or an iterator."""

import threading
from collections.abc import Iterator
from typing import Any

import torch

from metamirror.console import warn
from metamirror.core.checks import are_labels, check_batch
from metamirror.core.tasks import Batch, Task, as_batch
from metamirror.core.trees import leaves
from metamirror.data.addressing import check_address
from metamirror.data.task_stream import TaskStream


class GivenTasks(TaskStream):
    """The tasks of an object with a method `task(step, index)`.

    What the object says of itself counts (`example_shape`, `outputs`, `ragged`, `identity`);
    otherwise the first task says it, and tasks are taken to differ in their shapes.
    """

    def __init__(self, source: Any, split: str, seed: int, batch: int):
        self.source = source
        check_address(seed, split)
        self.split, self.seed, self.batch = split, seed, batch
        try:
            support, query = self.task(0, 0)
        except (TypeError, AttributeError) as error:
            raise ValueError(
                f"{type(source).__name__}.task(0, 0) failed ({error}); an object that makes tasks "
                f"has a method task(step, index) that returns ((x, y), (x, y)), and is no class"
            ) from error
        labels, y = are_labels(support.y), leaves(support.y)[0]
        found = y.shape[-1] if y.dim() > 1 else 1
        if labels:
            found = int(max(t.max() for t in (y, *leaves(query.y)))) + 1
        self.outputs: int = getattr(source, "outputs", found)
        classes = self.outputs if labels else 1
        shots, asked = (max(1, part.examples // classes) for part in (support, query))
        super().__init__(split, shots, asked, seed, batch)
        example = leaves(support.x)[0].shape[1:]
        self.example_shape = tuple(getattr(source, "example_shape", example))
        self.ragged = getattr(source, "ragged", True)
        self.identity = getattr(source, "identity", "")

    def task(self, step: int, index: int) -> Task:
        check_address(self.seed, self.split, step, index)
        return as_task(self.source.task(step, index), f"task({step}, {index})")


class IteratedTasks(GivenTasks):
    """The tasks of an iterator, each once and in order: there is no going back in it.

    Asked for a later task, it draws and forgets those between; so a resumed run goes on where it
    was if the iterator gives the same tasks again, and only then.
    """

    exact = False

    def __init__(self, source: Iterator[Any], split: str, seed: int, batch: int):
        self._taken = 0
        # The tasks of two steps, and what threads may ask for out of order.
        self._recent: dict[int, Task] = {}
        self._kept = 2 * batch + torch.get_num_threads()
        self._lock = threading.Lock()
        super().__init__(source, split, seed, batch)
        warn(
            "tasks come from an iterator: a resumed run draws as many again and leaves them out, "
            "which is exact only if the iterator repeats itself; a class with task(step, index) "
            "always is"
        )

    def task(self, step: int, index: int) -> Task:
        check_address(self.seed, self.split, step, index)
        number = step * self.batch + index
        with self._lock:
            while self._taken <= number:
                try:
                    value = next(self.source)
                except StopIteration:
                    raise ValueError(
                        f"the iterator ended after {self._taken} tasks, and task {number} was "
                        f"asked for: give an endless one"
                    ) from None
                self._recent[self._taken] = as_task(value, f"task {self._taken} of the iterator")
                self._recent.pop(self._taken - self._kept, None)
                self._taken += 1
            if number not in self._recent:
                raise ValueError(
                    f"task {number} of the iterator has passed: where tasks are needed again, as "
                    f"for validation, give a class with task(step, index)"
                )
            return self._recent[number]


def as_task(value: Any, name: str) -> Task:
    """Return one task of tensors, from pairs of what `Batch` takes."""
    try:
        support, query = (Batch(x, y) for x, y in value)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{name} is no task ({error}); give ((x, y), (x, y)), support and query"
        ) from error
    like = torch.zeros(())
    names = f"{name}: support", f"{name}: query"
    found = Task(as_batch(support, like, names[0]), as_batch(query, like, names[1]))
    check_batch(found.support, names[0], stacked=False)
    check_batch(found.query, names[1], stacked=False)
    return found
