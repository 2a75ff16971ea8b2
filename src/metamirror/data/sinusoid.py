"""Sinusoid regression of Finn et al. (2017), generated."""

import numpy as np
import torch

from metamirror.core.tasks import Batch, Task
from metamirror.data.addressing import task_generator
from metamirror.data.task_stream import TaskStream


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
