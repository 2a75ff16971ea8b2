"""Tasks by address: (seed, split, step, index) determines each; sine curves are the simplest."""

from abc import ABC, abstractmethod
from collections.abc import Iterable

import numpy as np
import torch

from metamirror.core.tasks import Batch, Task, Tasks, forms, stack_tasks
from metamirror.data.addressing import check_address, noise_seed, task_generator


class TaskStream(ABC):
    """An endless, stateless sequence of tasks: `stream[step]` holds `batch` of them.

    They are a stack where all have the same shapes, and otherwise a list. Nothing is drawn in
    order, so that resuming, distributing and comparing are exact.
    """

    example_shape: tuple[int, ...]
    outputs: int
    """What a model needs to know: the shape of one input, and the ways or target dimension."""

    identity: str = ""
    """A checksum of the data that tasks are drawn from; empty where they are generated."""

    ragged: bool = False
    """Whether tasks may differ in their shapes; `torch.func.vmap` is then not used on them."""

    exact: bool = True
    """Whether the same address gives the same task again, also in another process."""

    def __init__(self, split: str, shots: int, queries: int, seed: int, batch: int):
        check_address(seed, split)
        for name, value in (("shots", shots), ("queries", queries), ("batch", batch)):
            if value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1")
        self.split, self.shots, self.queries = split, shots, queries
        self.seed, self.batch = seed, batch

    @abstractmethod
    def task(self, step: int, index: int) -> Task:
        """Return one task, without a task axis."""

    def seeds(self, step: int) -> list[int]:
        """Return the seeds of the noise that a method draws for the tasks of a step."""
        return [noise_seed(self.seed, self.split, step, i) for i in range(self.batch)]

    @property
    def chance(self) -> float:
        """The share of right answers that guessing gives, where answers are labels."""
        return 1 / self.outputs

    def __getitem__(self, step: int) -> Tasks:
        return self.stack(step, range(self.batch))

    def stack(self, step: int, indices: Iterable[int]) -> Tasks:
        """Return some tasks of a step: one rank's share, for example."""
        tasks = [self.task(step, index) for index in indices]
        alike = all(forms(task) == forms(tasks[0]) for task in tasks)
        return stack_tasks(tasks) if alike else tasks


class Sinusoid(TaskStream):
    """y = A sin(x - p): amplitude A in [0.1, 5], phase p in [0, pi], x in [-5, 5], no noise.

    >>> Sinusoid("train", shots=10, queries=15, seed=0, batch=4)[0].support.x.shape
    torch.Size([4, 10, 1])
    """

    example_shape = (1,)
    outputs = 1

    def task(self, step: int, index: int) -> Task:
        random = task_generator(self.seed, self.split, step, index)
        amplitude, phase = random.uniform(0.1, 5.0), random.uniform(0.0, np.pi)
        x = torch.from_numpy(random.uniform(-5.0, 5.0, (self.shots + self.queries, 1))).float()
        y = amplitude * torch.sin(x - phase)
        k = self.shots
        return Task(Batch(x[:k], y[:k]), Batch(x[k:], y[k:]))
