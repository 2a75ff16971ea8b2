"""What researchers bring, in small: parts of models, examples, and the form of a case."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

import metamirror as mm

EXAMPLES, WAYS = 6, 3


class Draw:
    """Random examples of a stack of tasks."""

    def __init__(self, seed: int, tasks: int):
        self.generator = torch.Generator().manual_seed(seed)
        self.query, self.tasks = bool(seed), tasks

    def real(self, *shape: int) -> Tensor:
        size = (self.tasks, EXAMPLES, *shape)
        return torch.randn(size, generator=self.generator, dtype=torch.float64)

    def whole(self, high: int, *shape: int) -> Tensor:
        return torch.randint(high, (self.tasks, EXAMPLES, *shape), generator=self.generator)


def labels(draw: Draw) -> Tensor:
    return torch.arange(WAYS).repeat(draw.tasks, EXAMPLES // WAYS)


def numbers(draw: Draw) -> Tensor:
    return draw.real(4)


def series(draw: Draw) -> Tensor:
    return draw.real(5, 4)


def images(draw: Draw) -> Tensor:
    return draw.real(1, 6, 6)


def volumes(draw: Draw) -> Tensor:
    return draw.real(1, 3, 3, 3)


def words(draw: Draw) -> Tensor:
    """Seven tokens to learn from, nine to be asked about."""
    return draw.whole(11, 9 if draw.query else 7)


@dataclass(frozen=True)
class Case:
    """A model, the data of its tasks, and what becomes of them.

    Attributes:
        model: makes it.
        x: draws the inputs of a stack of tasks.
        y: draws the targets.
        options: of the learner: loss and query_loss.
        refused: words of the refusal, where there is one.
        under_vmap: the same for `vectorize=True`, where tasks one after the other work.
    """

    model: Callable[[], nn.Module]
    x: Callable[[Draw], Any] = numbers
    y: Callable[[Draw], Any] = labels
    options: dict[str, Any] = field(default_factory=dict)
    refused: str = ""
    under_vmap: str = ""

    def tasks(self, count: int = 2) -> mm.Task:
        draws = Draw(0, count), Draw(1, count)
        return mm.Task(*(mm.Batch(self.x(draw), self.y(draw)) for draw in draws))


class Made(nn.Module):
    """A model of some parts, and of a function that calls them."""

    def __init__(self, run: Callable[..., Any], **parts: Any):
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self.run = run

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(self, *args, **kwargs)


def mlp(*between: nn.Module) -> nn.Module:
    """Two linear layers, and others between them."""
    return nn.Sequential(nn.Linear(4, 6), *(between or [nn.Tanh()]), nn.Linear(6, WAYS))


def sequence(body: nn.Module, run: Callable[..., Any] = lambda body, x: body(x)) -> nn.Module:
    """A body whose result is averaged over its places, and a head."""

    def forward(m: Any, x: Tensor) -> Tensor:
        found = run(m.body, x)
        return m.head((found[0] if isinstance(found, tuple) else found).tanh().mean(1))

    return Made(forward, body=body, head=nn.Linear(4, WAYS))


def convolved(*body: nn.Module, features: int) -> nn.Module:
    """Some layers for images, and a head."""
    return nn.Sequential(*body, nn.Tanh(), nn.Flatten(), nn.Linear(features, WAYS))


def headed(run: Callable[..., Any], **parts: Any) -> nn.Module:
    """A function of the first layer's six numbers, and a head."""
    return Made(
        lambda m, x: m.head(run(m, m.first(x)).tanh()),
        first=nn.Linear(4, 6),
        head=nn.Linear(6, WAYS),
        **parts,
    )


@dataclass
class Pair:
    """An input, or an output, of the user's own class."""

    u: Any
    v: Any


class Cubed(torch.autograd.Function):
    """An operation whose own derivative has none."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return 3 * ctx.saved_tensors[0] ** 2 * grad
