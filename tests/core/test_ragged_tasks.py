"""Lists of tasks that differ in ways, shots, queries and lengths, beside stacks of equal ones."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import metamirror as mm
from metamirror.core.tasks import split_tasks
from metamirror.testing.differences import move
from metamirror.testing.networks import smooth_mlp
from tests.core.test_meta_gradient import shaken
from tests.networks import conv4, image_tasks, point_tasks
from tests.refusals import assert_refused


def one_task(ways: int, shots: int, queries: int, seed: int) -> mm.Task:
    """A task on six numbers, of at most three ways."""
    torch.manual_seed(seed)
    centres = torch.randn(ways, 6, dtype=torch.float64)

    def batch(each: int) -> mm.Batch:
        y = torch.arange(ways).repeat(each)
        return mm.Batch(centres[y] + 0.3 * torch.randn(len(y), 6, dtype=torch.float64), y)

    return mm.Task(batch(shots), batch(queries))


RAGGED = [one_task(3, 2, 1, 0), one_task(2, 1, 5, 1), one_task(3, 4, 2, 2)]


class Bag(nn.Module):
    """Token numbers of any length: the mean of their vectors, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.vectors = nn.Embedding(11, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.tanh(self.vectors(tokens)).mean(1))


def text_task(lengths: tuple[int, int], seed: int) -> mm.Task:
    torch.manual_seed(seed)
    labels = torch.arange(3).repeat(2)
    return mm.Task(*(mm.Batch(torch.randint(11, (6, length)), labels) for length in lengths))


def naive_loss(model: nn.Module, task: mm.Task, steps: int, lr: float) -> Tensor:
    """MAML on one task, by the formula and torch.autograd alone."""
    phi = dict(model.named_parameters())
    for _ in range(steps):
        output = torch.func.functional_call(model, phi, (task.support.x,))
        loss = nn.functional.cross_entropy(output, task.support.y)
        grads = torch.autograd.grad(loss, list(phi.values()), create_graph=True)
        phi = {name: p - lr * g for (name, p), g in zip(phi.items(), grads, strict=True)}
    output = torch.func.functional_call(model, phi, (task.query.x,))
    return nn.functional.cross_entropy(output, task.query.y)


@pytest.mark.parametrize("kind", ["ways, shots and queries", "lengths"])
def test_the_meta_gradient_of_a_list_is_the_mean_of_naive_ones(kind: str):
    torch.manual_seed(0)
    model = smooth_mlp() if kind != "lengths" else Bag().double()
    tasks = RAGGED if kind != "lengths" else [text_task((7, 9), 0), text_task((4, 4), 1)]
    expected = [torch.zeros_like(p) for p in model.parameters()]
    for task in tasks:
        loss = naive_loss(model, task, steps=2, lr=0.1)
        grads = torch.autograd.grad(loss, list(model.parameters()))
        expected = [e + g / len(tasks) for e, g in zip(expected, grads, strict=True)]
    learner = mm.make_learner("maml", model, steps=2, lr=0.1)
    losses, found = learner.meta_gradient(tasks)
    for g, e in zip(found, expected, strict=True):
        torch.testing.assert_close(g, e, rtol=1e-10, atol=1e-12)
    learner.meta_loss(tasks).backward()
    for p, e in zip(learner.model.parameters(), expected, strict=True):
        torch.testing.assert_close(p.grad, e, rtol=1e-10, atol=1e-12)
    assert losses.loss.shape == losses.score.shape == (len(tasks),)


@pytest.mark.parametrize("spec", list(mm.METHODS))
def test_every_method_takes_a_list(spec: str):
    learner = shaken(spec, smooth_mlp())
    seeds = [3, 4, 5]
    losses, found = learner.meta_gradient(RAGGED, seeds=seeds)
    alone = [learner.meta_gradient([t], seeds=[s]) for t, s in zip(RAGGED, seeds, strict=True)]
    assert torch.equal(losses.loss, torch.cat([one.loss for one, _ in alone]))
    for i, g in enumerate(found):
        mean = torch.stack([grads[i] for _, grads in alone]).mean(0)
        torch.testing.assert_close(g, mean, rtol=1e-9, atol=1e-11)


def test_the_gradient_of_a_list_agrees_with_finite_differences():
    learner = shaken("metasgd", smooth_mlp())
    _, grads = learner.meta_gradient(RAGGED)
    parameters = [p for p in learner.parameters() if p.requires_grad]
    torch.manual_seed(1)
    direction = [torch.randn_like(p) for p in parameters]
    ends = []
    for step in (1e-6, -2e-6):
        with torch.no_grad():
            for p, d in zip(parameters, direction, strict=True):
                p.add_(d, alpha=step)
        ends.append(learner.meta_loss(RAGGED).item())
    slope = (ends[0] - ends[1]) / 2e-6
    expected = sum(float((g * d).sum()) for g, d in zip(grads, direction, strict=True))
    assert slope == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("vectorize", [False, True])
def test_a_list_of_equal_tasks_is_a_stack(vectorize: bool):
    stack = image_tasks(16, count=3)
    learner = shaken("maml", conv4(), vectorize=vectorize)
    (loss, accuracy), grads = learner.meta_gradient(stack)
    (other, right), found = learner.meta_gradient(split_tasks(stack))
    assert torch.equal(loss, other)
    assert torch.equal(accuracy, right)
    assert all(torch.equal(a, b) for a, b in zip(grads, found, strict=True))


def test_processes_give_the_bits_that_threads_give():
    learner = mm.make_learner("metasgd", Bag().double(), steps=2, lr=0.1)
    move(list(learner.parameters()), 0.05, 2)
    tasks = [text_task((7, 9), 0), text_task((3, 5), 1), text_task((2, 2), 2)]
    (loss, accuracy), grads = learner.meta_gradient(tasks)
    with mm.TaskPool(learner, processes=2) as pool:
        (other, right), found = learner.meta_gradient(tasks, pool=pool)
    assert torch.equal(loss, other)
    assert torch.equal(accuracy, right)
    assert all(torch.equal(a, b) for a, b in zip(grads, found, strict=True))


def test_a_stack_may_have_longer_queries_than_supports():
    learner = mm.make_learner("maml", Bag().double(), steps=1)
    tasks = [text_task((7, 9), seed) for seed in range(3)]
    parts = [mm.Batch(*map(torch.stack, zip(*b, strict=True))) for b in zip(*tasks, strict=True)]
    assert torch.equal(learner.meta_loss(mm.Task(*parts)), learner.meta_loss(tasks))


def test_plain_pairs_are_batches():
    learner = mm.make_learner("maml", smooth_mlp())
    (x, y), query = RAGGED[0]
    adapted, other = learner.adapt((x, y)), learner.adapt(mm.Batch(x, y))
    assert torch.equal(adapted(query.x), other(query.x))
    assert len(list(learner.adaptations((x, y), steps=2))) == 3
    pair = ((x, y), tuple(query))
    assert torch.equal(learner.meta_loss([pair]), learner.meta_loss([RAGGED[0]]))
    learner.configure(norm="inductive")
    learner.adapt((x, y))


REFUSED = {
    "no task": (lambda: make().meta_loss([]), r"tasks is empty; give a Task that is a stack, or"),
    "no tasks at all": (lambda: make().meta_loss(3), r"tasks is int; give a Task"),
    "something else in the list": (
        lambda: make().meta_loss([RAGGED[0], 3]),
        r"tasks\[1\] is int, not Task\(support, query\)",
    ),
    "a bad support set in a list": (
        lambda: make().meta_loss([RAGGED[0], RAGGED[1]._replace(support=(RAGGED[1][0].x[:1], 3))]),
        r"tasks\[1\]\.support\.y holds int; give a tensor or an array",
    ),
    "a label too large in a list": (
        lambda: make().meta_loss([one_task(2, 1, 1, 0), one_task(4, 1, 1, 0)]),
        r"tasks\[1\]\.support\.y holds the label 3, but the model has 3 outputs",
    ),
    "a single task as a stack": (
        lambda: make().meta_loss(RAGGED[0]),
        r"both must start with the same \(tasks, examples, \.\.\.\); a single task goes in a list",
    ),
    "different shapes under vmap": (
        lambda: make(vectorize=True).meta_loss(RAGGED),
        r"support\.x is float64 \(6, 6\) in task 0 and float64 \(2, 6\) in task 1, which do not "
        r"make a stack, as torch\.func\.vmap needs: leave vectorize off",
    ),
    "a gradient of different shapes under vmap": (
        lambda: make(vectorize=True).meta_gradient(RAGGED),
        r"leave vectorize off",
    ),
    "seeds for another number of tasks": (
        lambda: make().meta_loss(RAGGED, seeds=[1]),
        r"1 seeds for 3 tasks",
    ),
}


def make(**options) -> mm.Learner:
    return mm.make_learner("maml", smooth_mlp(), **options)


@pytest.mark.parametrize("mistake", REFUSED)
def test_a_mistake_is_named(mistake: str):
    assert_refused(*REFUSED[mistake])


def test_a_length_that_the_model_does_not_take_is_named_in_one_line():
    learner = mm.make_learner("maml", nn.Linear(6, 3).double())
    task = point_tasks(count=1)
    wrong = task._replace(query=mm.Batch(task.query.x[..., :4], task.query.y))
    with pytest.raises(ValueError, match=r"does not take an example of shape \(4,\)") as caught:
        learner.meta_loss(wrong)
    assert "\n" not in str(caught.value)
