r"""Reptile: the start moves towards the adapted parameters.

$$\theta \leftarrow \theta + \epsilon\,(\overline{\phi^{(K)}} - \theta),$$

with the mean over tasks. Each inner step is on a minibatch of one set, support and query of the
task together: nothing is left to evaluate on. The objective is a scalar whose gradient in the start
is $\theta - \phi^{(K)}$: SGD with learning rate $\epsilon$ makes it the equation above, and any
other optimiser may use it. Its value is the query loss at $\phi^{(K)}$, which has seen these
examples. Nothing but the start is learned, and a geometry or prior with parameters is refused.

The authors' code takes inner steps of Adam without momentum, here they are gradient descent, as in
the paper's analysis. It shuffles the examples at random in every round; here one fixed shuffle
serves all, so that what a task does depends on its address alone. Adapting to a new task uses the
whole support set at every step.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor, nn

from metamirror.core.adjoints import Detached
from metamirror.core.episode import Episode
from metamirror.core.inner_level import InnerLevel
from metamirror.core.mirror_map import inner
from metamirror.core.settings import Settings
from metamirror.core.tasks import Batch, Task
from metamirror.core.trees import mapped
from metamirror.methods.registry import Method, Parts


@dataclass(frozen=True)
class Options:
    """Options of `reptile`.

    Attributes:
        batch: examples in the minibatch of an inner step; all, if there are no more.
    """

    batch: int = 10


class TowardsAdapted:
    r"""The query loss's value, with the gradient $\theta - \phi^{(K)}$ in the start."""

    def __init__(self, batch: int):
        self.batch = batch

    def __call__(self, episode: Episode) -> Tensor:
        refuse_others_that_learn(episode.inner)
        examples = joined(episode.task)
        order = shuffled(examples.examples)
        state, geometry = episode.state, episode.inner.geometry
        with torch.no_grad():
            phi0 = geometry.primal(state)
        phi = phi0
        for k in range(episode.inner.steps):
            chosen = minibatch(order, k, self.batch)
            support = mapped(lambda tensor, chosen=chosen: tensor[chosen], examples)
            path = episode.descend(
                state=state, adjoint=Detached(), steps=1, first=k, support=support, phi0=phi0
            )
            state, phi = path.states[-1], path.phi
        with torch.no_grad():
            loss = episode.query_loss(phi)
        start = geometry.primal(episode.state)
        change = {name: (start[name] - phi[name]).detach() for name in phi}
        slope = inner(start, change)
        return loss + (slope - slope.detach())


def refuse_others_that_learn(level: InnerLevel) -> None:
    """Refuse a geometry or a prior with parameters, which would never change."""
    for name, part in (("geometry", level.geometry), ("prior", level.prior)):
        if part is not None and any(p.requires_grad for p in part.parameters()):
            raise ValueError(
                f"the {name} {type(part).__name__} has parameters to learn, and Reptile learns the "
                f"start alone: choose another {name}, or another objective"
            )


def joined(task: Task) -> Batch:
    """Return support and query as one set."""
    whole: Batch = mapped(lambda s, q: torch.cat([s, q]), task.support, task.query)
    return whole


def shuffled(count: int) -> list[int]:
    """Return a fixed order, in which neighbours, which may be of one class, are far apart.

    It sorts the multiples of the golden ratio by what follows their decimal point.

    >>> shuffled(8)
    [0, 5, 2, 7, 4, 1, 6, 3]
    """
    ratio = (sqrt(5) - 1) / 2
    return sorted(range(count), key=lambda i: i * ratio % 1)


def minibatch(order: Sequence[int], k: int, size: int) -> list[int]:
    """Return the examples of step k: each comes once before any comes again.

    >>> [minibatch([2, 0, 1], k, 2) for k in range(3)]
    [[2, 0], [1, 2], [0, 1]]
    """
    count = len(order)
    size = min(size, count)
    return [order[i % count] for i in range(k * size, (k + 1) * size)]


def build(model: nn.Module, options: Options, settings: Settings) -> Parts:
    """Leave every slot but the objective at its default."""
    if options.batch < 1:
        raise ValueError(f"reptile:batch is {options.batch}; it must be at least 1")
    return Parts(model, objective=TowardsAdapted(options.batch))


METHOD = Method(
    key="reptile",
    title="Reptile",
    optimizer="GD on minibatches",
    geometry="identity matrix",
    paper="Nichol, Achiam, Schulman 2018",
    reported=(
        "49.97 ± 0.32 / 65.99 ± 0.58, conv4-32, transductive; "
        "47.07 ± 0.26 / 62.74 ± 0.37, inductive"
    ),
    build=build,
    options=Options,
    group="relative",
)
