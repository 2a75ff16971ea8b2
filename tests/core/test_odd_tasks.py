"""Models, data and losses of the user's own: right at the first try, or refused in a line."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import metamirror as mm
from metamirror.core.checks import check_tasks
from metamirror.core.losses import loss_for
from metamirror.core.metrics import accuracy
from metamirror.core.tasks import split_tasks
from metamirror.core.trees import mapped
from metamirror.testing.differences import check_slope, move
from metamirror.testing.methods import learned
from metamirror.testing.networks import smooth_mlp
from tests.core.odd_data import INPUTS, TARGETS
from tests.core.odd_layers import MODELS
from tests.core.odd_models import WAYS, Case, Made, mlp
from tests.core.test_ragged_tasks import RAGGED

METHODS = ["maml", "metasgd", "metacurvature", "blockiaf", "gradnet", "imaml:adjoint=unrolled"]
CASES = {**INPUTS, **TARGETS, **MODELS}
RIGHT = [name for name, case in CASES.items() if not case.refused]
REFUSED = [name for name, case in CASES.items() if case.refused]

each_method = pytest.mark.parametrize("method", METHODS)


def learner_of(
    name: str, method: str, count: int = 2, **options: Any
) -> tuple[mm.Learner, mm.Task]:
    case = CASES[name]
    torch.manual_seed(0)
    model = case.model()
    if not any(nn.parameter.is_lazy(p) for p in model.parameters()):
        model.double()
    learner = mm.make_learner(method, model, steps=2, lr=0.1, **case.options, **options)
    move(list(learner.parameters()), 0.05, seed=1)
    return learner, case.tasks(count)


def seeded(call: Callable[..., Any], *args: Any) -> Any:
    """Call a function with the same dropout every time."""
    torch.manual_seed(7)
    return call(*args)


@each_method
@pytest.mark.parametrize("case", RIGHT)
def test_the_meta_gradient_is_that_of_finite_differences(case: str, method: str):
    learner, tasks = learner_of(case, method, count=1)
    _, found = seeded(learner.meta_gradient, tasks)
    parameters = list(learned(learner).values())
    check_slope(lambda: seeded(learner.meta_loss, tasks), parameters, found, "the meta-gradient")
    assert any(bool(g.abs().max() > 1e-6) for g in found)


@each_method
def test_tasks_of_several_ways_shots_and_queries_are_right(method: str):
    learner = mm.make_learner(method, smooth_mlp(), steps=2, lr=0.1)
    move(list(learner.parameters()), 0.05, seed=1)
    _, found = learner.meta_gradient(RAGGED)
    parameters = list(learned(learner).values())
    check_slope(lambda: learner.meta_loss(RAGGED), parameters, found, "the meta-gradient")


@each_method
@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_done_is_refused_in_a_line(case: str, method: str):
    def train() -> None:
        learner, tasks = learner_of(case, method)
        learner.meta_gradient(tasks)

    with pytest.raises(ValueError, match=CASES[case].refused) as caught:
        train()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("case", RIGHT)
def test_lists_and_vmap_give_the_same(case: str):
    learner, tasks = learner_of(case, "metasgd")
    (loss, _), found = seeded(learner.meta_gradient, tasks)
    each = split_tasks(check_tasks(tasks, loss))
    torch.testing.assert_close(seeded(learner.meta_gradient, each)[1], found)
    if words := CASES[case].under_vmap:
        with pytest.raises(ValueError, match=words) as caught:
            learner_of(case, "metasgd", vectorize=True)[0].meta_loss(tasks)
        assert "\n" not in str(caught.value)
    elif not learner.draws_noise:
        stacked, _ = learner_of(case, "metasgd", vectorize=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what vmap does one by one
            torch.testing.assert_close(stacked.meta_gradient(tasks)[1], found)
    if not learner.draws_noise:
        one = learner.adapt(each[0].support)
        own = learner.settings.query_loss or learner.settings.loss or loss_for(each[0].query.y)
        torch.testing.assert_close(own(one(each[0].query.x), each[0].query.y), loss[0])


@each_method
@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_half_precision_is_near_the_full_one(kind: torch.dtype, method: str):
    def gradient(kind: torch.dtype) -> torch.Tensor:
        torch.manual_seed(0)
        learner = mm.make_learner(method, mlp().to(kind), steps=2, lr=0.1)
        tasks = mapped(lambda t: t.to(kind) if t.is_floating_point() else t, Case(mlp).tasks())
        return torch.cat([g.double().flatten() for g in learner.meta_gradient(tasks)[1]])

    if method == "gradnet":
        with pytest.raises(ValueError, match=f"the model is {kind}, .*as model.float.. does"):
            gradient(kind)
    else:
        assert torch.cosine_similarity(gradient(kind), gradient(torch.double), 0) > 0.99


@each_method
def test_several_types_go_with_methods_whose_geometry_has_none(method: str):
    model = nn.Sequential(nn.Linear(4, 6).double(), Made(lambda m, x: x.float()), nn.Linear(6, 3))

    def train() -> None:
        mm.make_learner(method, model, steps=2).meta_gradient(Case(mlp).tasks())

    if method.startswith(("maml", "imaml")):
        train()
    else:
        with pytest.raises(ValueError, match=r"float32 and torch\.float64, and a geometry has one"):
            train()


def test_adapting_alone_refuses_what_would_be_wrong():
    learner, tasks = learner_of("a checkpoint", "maml")
    with pytest.raises(ValueError, match=r"first is under torch\.utils.checkpoint"):
        learner.adapt(split_tasks(tasks)[0].support)


def test_without_gradients_a_meta_loss_is_computed():
    learner, tasks = learner_of("contrast", "maml")
    with torch.no_grad():
        found = learner.meta_loss(tasks)
    assert found == learner.meta_loss(tasks)


def test_a_byte_is_a_label_however_large():
    y = torch.full((4,), 156, dtype=torch.uint8)
    assert accuracy(torch.zeros(4, 200), y) == 0
    learner = mm.make_learner("maml", nn.Linear(4, 200))
    learner.adapt(mm.Batch(torch.randn(4, 4), y))


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
    learner = mm.make_learner("maml", CASES[case].model().double())
    with pytest.raises(ValueError, match=words):
        learner.meta_loss(CASES[case].tasks())


def test_what_is_no_tensor_is_named():
    learner = mm.make_learner("maml", mlp().double())
    with pytest.raises(ValueError, match=r"support\.x holds str; give a tensor or an array"):
        learner.adapt(mm.Batch("images", torch.arange(3)))
    with pytest.raises(ValueError, match=r"x has shape \(6, 4\) and \(5, 2\)"):
        learner.adapt(mm.Batch((torch.ones(6, 4), torch.ones(5, 2)), torch.zeros(6).long()))
    with pytest.raises(ValueError, match="holds no label that counts: all are -100"):
        learner.adapt(mm.Batch(torch.ones(6, 4).double(), torch.full((6,), -100)))
