"""Everything that decides a run, in one frozen object that is written beside its results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from metamirror.learner import Norm


@dataclass(frozen=True)
class RunConfig:
    """The settings of one training run; the defaults are the paper's protocol.

    Attributes:
        method: a method's key; its options may follow, as in blockiaf:variant=released.
        data: the data set; folder:PATH takes pictures of your own.
        model: the network; by default conv4 for pictures and the MLP for anything else.
        width: filters of the network's first layer; by default the model's own.
        image_size: height and width of the pictures; by default as the data set has them.
        ways: classes of a task.
        shots: labelled examples a class (for regression: a task).
        queries: query examples a class (for regression: a task).
        steps: inner steps, K.
        lr: inner step size, alpha.
        iterations: outer steps, R.
        tasks_per_step: tasks per outer step.
        outer_lr: outer step size, beta, of Adam.
        seed: of the start and of every task.
        first_order: treat inner gradients as constants.
        norm: whose statistics normalise the query.
        prior: an explicit prior of the lower level, such as isotropic:0.1.
        vectorize: run the tasks of a step under torch.func.vmap.
    """

    method: str
    data: str = "glyphs"
    model: Literal["conv4", "resnet12", "mlp"] | None = None
    width: int | None = None
    image_size: int | None = None
    ways: int = 5
    shots: int = 1
    queries: int = 15
    steps: int = 5
    lr: float = 0.01
    iterations: int = 60_000
    tasks_per_step: int = 4
    outer_lr: float = 1e-3
    seed: int = 0
    first_order: bool = False
    norm: Norm = "transductive"
    prior: str | None = None
    vectorize: bool = True
