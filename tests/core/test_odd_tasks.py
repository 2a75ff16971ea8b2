"""Inputs, targets and outputs that are no single tensors: right, or refused in a line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

import metamirror as mm
from metamirror.core.losses import cross_entropy as usual_loss
from metamirror.core.metrics import accuracy
from metamirror.core.tasks import split_tasks
from metamirror.testing.differences import move
from metamirror.testing.methods import check_learner_gradient

METHODS = ["maml", "metasgd", "metacurvature", "blockiaf", "gradnet", "imaml:adjoint=unrolled"]
TASKS, WAYS = 2, 3


class TwoInputs(nn.Module):
    """Takes (u, v), as arguments or by name."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 6), nn.Linear(2, 6)
        self.head = nn.Linear(6, WAYS)

    def forward(self, u: Tensor, v: Tensor) -> Tensor:
        return self.head((self.a(u) + self.b(v)).tanh())


@dataclass
class Pair:
    """An input of the user's own class."""

    u: Tensor
    v: Tensor


class TakesPair(nn.Module):
    """Takes one object that holds both."""

    def __init__(self) -> None:
        super().__init__()
        self.net = TwoInputs()

    def forward(self, pair: Pair) -> Tensor:
        return self.net(pair.u, pair.v)


class Named(nn.Module):
    """Gives a dict, or a tuple."""

    def __init__(self, form: type) -> None:
        super().__init__()
        self.net, self.form = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, WAYS)), form

    def forward(self, x: Tensor) -> Any:
        logits = self.net(x)
        both = {"logits": logits, "energy": logits.square().sum(1)}
        return both if self.form is dict else tuple(both.values())


class Masks(nn.Module):
    """Gives logits for every pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Tanh(), nn.Conv2d(4, WAYS, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


def numbers(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(TASKS, 6, *shape, generator=generator, dtype=torch.float64)


def stack(inputs: Callable[[int], Any], targets: Callable[[int], Any]) -> mm.Task:
    return mm.Task(*(mm.Batch(inputs(seed), targets(seed)) for seed in (0, 1)))


def labels(seed: int) -> Tensor:
    return torch.arange(WAYS).repeat(2).repeat(TASKS, 1)


def pixels(seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(WAYS, (TASKS, 6, 5, 5), generator=generator)


def some_ignored(seed: int) -> Tensor:
    found = pixels(seed)
    found[:, :, 0] = -100
    return found


def tags(seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(2, (TASKS, 6, WAYS), generator=generator)


def of_dict(output: Any, y: Tensor) -> Tensor:
    return cross_entropy(output["logits"], y) + 0.1 * output["energy"].mean()


def of_tuple(output: Any, y: Tensor) -> Tensor:
    return cross_entropy(output[0], y) + 0.1 * output[1].mean()


def of_two_targets(output: Any, y: Any) -> Tensor:
    return cross_entropy(output[0], y["label"]) + (output[1] - y["energy"]).square().mean()


def of_tags(output: Tensor, y: Tensor) -> Tensor:
    return binary_cross_entropy_with_logits(output, y.to(output.dtype))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, WAYS))


CASES: dict[str, tuple[Callable[[], nn.Module], mm.Task, dict[str, Any]]] = {
    "a tuple in": (
        TwoInputs,
        stack(lambda s: (numbers(4, seed=s), numbers(2, seed=s + 2)), labels),
        {},
    ),
    "a dict in": (
        TwoInputs,
        stack(lambda s: {"v": numbers(2, seed=s), "u": numbers(4, seed=s + 2)}, labels),
        {},
    ),
    "a dataclass in": (
        TakesPair,
        stack(lambda s: Pair(numbers(4, seed=s), numbers(2, seed=s + 2)), labels),
        {},
    ),
    "a dict out": (
        lambda: Named(dict),
        stack(lambda s: numbers(4, seed=s), labels),
        {"loss": of_dict},
    ),
    "a tuple out": (
        lambda: Named(tuple),
        stack(lambda s: numbers(4, seed=s), labels),
        {"loss": of_tuple},
    ),
    "two targets": (
        lambda: Named(tuple),
        stack(
            lambda s: numbers(4, seed=s),
            lambda s: {"label": labels(s), "energy": numbers(seed=s)},
        ),
        {"loss": of_two_targets},
    ),
    "a label for each pixel": (Masks, stack(lambda s: numbers(1, 5, 5, seed=s), pixels), {}),
    "ignored labels": (Masks, stack(lambda s: numbers(1, 5, 5, seed=s), some_ignored), {}),
    "several labels": (mlp, stack(lambda s: numbers(4, seed=s), tags), {"loss": of_tags}),
    "another loss for the query": (
        mlp,
        stack(lambda s: numbers(4, seed=s), labels),
        {"loss": nn.CrossEntropyLoss(label_smoothing=0.2), "query_loss": cross_entropy},
    ),
}


def learner_of(case: str, method: str, **options: Any) -> tuple[mm.Learner, mm.Task]:
    build, tasks, own = CASES[case]
    torch.manual_seed(0)
    learner = mm.make_learner(method, build().double(), steps=2, lr=0.1, **own, **options)
    move(list(learner.parameters()), 0.05, seed=1)
    return learner, tasks


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("case", CASES)
def test_the_meta_gradient_is_that_of_finite_differences(case: str, method: str):
    check_learner_gradient(*learner_of(case, method))


@pytest.mark.parametrize("case", CASES)
def test_lists_and_vmap_give_the_same(case: str):
    learner, tasks = learner_of(case, "metasgd")
    (loss, _), found = learner.meta_gradient(tasks)
    each = split_tasks(tasks)
    torch.testing.assert_close(learner.meta_gradient(each)[1], found)
    stacked, _ = learner_of(case, "metasgd", vectorize=True)
    torch.testing.assert_close(stacked.meta_gradient(tasks)[1], found)
    one = learner.adapt(each[0].support)
    output = one(each[0].query.x)
    own = learner.settings.query_loss or learner.settings.loss or usual_loss
    torch.testing.assert_close(own(output, each[0].query.y), loss[0])


@pytest.mark.parametrize("method", ["reptile", "ibaml", "protomaml"])
def test_methods_that_handle_examples_themselves_take_trees(method: str):
    learner, tasks = learner_of("a dict in", method)
    (loss, right), grads = learner.meta_gradient(tasks, seeds=[0, 1])
    assert loss.isfinite().all()
    assert right.isfinite().all()
    assert any(bool(grad.abs().max() > 0) for grad in grads)


def test_accuracy_is_of_labels_that_count():
    logits = torch.zeros(1, 2, 3)
    logits[0, 1, :2] = 1
    assert accuracy(logits, torch.tensor([[1, 0, -100]])) == 0.5
    assert accuracy(logits, torch.zeros(1, 3)) is accuracy((logits,), torch.zeros(1).long()) is None
    assert accuracy(torch.full((1, 2), float("nan")), torch.tensor([0])) == 0


def test_arrays_and_lists_become_tensors_like_the_model():
    learner = mm.make_learner("maml", mlp().double(), steps=1)
    x = np.random.default_rng(0).normal(size=(WAYS, 4)).astype(np.float32)
    expected = learner.adapt(mm.Batch(torch.tensor(x).double(), torch.arange(WAYS)))
    new = torch.ones(1, 4).double()
    for y in (np.arange(WAYS), list(range(WAYS)), torch.arange(WAYS)):
        assert torch.equal(learner.adapt((x, y))(new), expected(new))
        assert torch.equal(learner.adapt(mm.Batch(x.tolist(), y))(new), expected(new))


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("a dict out", "the model gave a dict, for which there is no usual loss: give one"),
        ("two targets", "the targets are a dict, for which there is no usual loss: give one"),
    ],
)
def test_without_a_loss_one_is_asked_for(case: str, words: str):
    build, tasks, _ = CASES[case]
    learner = mm.make_learner("maml", build().double())
    with pytest.raises(ValueError, match=words):
        learner.meta_loss(tasks)


def test_what_is_no_tensor_is_named():
    learner = mm.make_learner("maml", mlp().double())
    with pytest.raises(ValueError, match=r"support\.x holds str; give a tensor or an array"):
        learner.adapt(mm.Batch("images", torch.arange(3)))
    with pytest.raises(ValueError, match=r"x has shape \(6, 4\) and \(5, 2\)"):
        learner.adapt(mm.Batch((torch.ones(6, 4), torch.ones(5, 2)), torch.zeros(6).long()))
    with pytest.raises(ValueError, match="holds no label that counts: all are -100"):
        learner.adapt(mm.Batch(torch.ones(6, 4).double(), torch.full((6,), -100)))
