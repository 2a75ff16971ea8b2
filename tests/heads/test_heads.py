"""Heads computed from the support set, against formulas written out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import metamirror as mm
from metamirror.core.start import Start
from metamirror.heads import HEADS, make
from metamirror.testing.methods import (
    check_learner_gradient,
    meta_gradient,
    moved,
    relative_difference,
)
from metamirror.testing.networks import WAYS, smooth_conv, smooth_mlp, tasks_of
from tests.comparing import one
from tests.networks import image_tasks, plain, point_tasks, shaken

WITHOUT_STEPS = ("protonet", "r2d2", "metaoptnet")


def features(model: nn.Module, x: Tensor, theta: dict[str, Tensor]) -> Tensor:
    """The input of smooth_mlp's head: two layers with tanh."""
    for i in range(2):
        weight, bias = (theta[f"blocks.{i}.linear.{part}"] for part in ("weight", "bias"))
        x = torch.tanh(x @ weight.T + bias)
    return x


def class_means(x: Tensor, y: Tensor) -> Tensor:
    return torch.stack([x[[i for i in range(len(y)) if y[i] == c]].mean(0) for c in range(WAYS)])


def test_prototypes_give_the_nearest_class_mean():
    learner = shaken(mm.make_learner("protonet", smooth_mlp()))
    (sx, sy), (qx, _) = (one(batch) for batch in point_tasks())
    theta = {n: p.detach() for n, p in learner.theta().items()}
    means = class_means(features(learner.model, sx, theta), sy)
    query = features(learner.model, qx, theta)
    distances = torch.stack([(query - mean).square().sum(1) for mean in means], 1)
    output = learner.adapt(mm.Batch(sx, sy))(qx)
    # The term that all classes share is left out.
    torch.testing.assert_close(output - query.square().sum(1, keepdim=True), -distances)


def test_proto_maml_without_a_step_is_protonet():
    tasks = point_tasks()
    none, proto = (
        shaken(mm.make_learner(name, smooth_mlp(), **own))
        for name, own in (("protomaml", {"steps": 0}), ("protonet", {}))
    )
    assert proto.steps == 0
    assert torch.equal(none.meta_loss(tasks), proto.meta_loss(tasks))
    assert relative_difference(meta_gradient(none, tasks), meta_gradient(proto, tasks)) == 0
    one_step = shaken(mm.make_learner("protomaml", smooth_mlp(), steps=1, lr=0.1))
    assert not torch.equal(one_step.meta_loss(tasks), proto.meta_loss(tasks))


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_the_meta_gradient_of_proto_maml_is_that_of_the_formula(steps: int):
    """The inner gradient is partial: the head that was computed is a point to start from."""
    tasks = point_tasks()
    learner = shaken(mm.make_learner("protomaml", smooth_mlp(), steps=steps, lr=0.1))
    found = meta_gradient(learner, tasks)
    theta = {n: p.detach().clone().requires_grad_() for n, p in learner.theta().items()}
    total = 0.0
    for task in zip(*(t for batch in tasks for t in batch), strict=True):
        sx, sy, qx, qy = task

        def loss(phi, x, y):
            logits = features(learner.model, x, phi) @ phi["head.weight"].T + phi["head.bias"]
            return F.cross_entropy(logits, y)

        means = class_means(features(learner.model, sx, theta), sy)
        phi = {**theta, "head.weight": 2 * means, "head.bias": -(means * means).sum(1)}
        for _ in range(steps):
            gradient = torch.func.grad(loss)(phi, sx, sy)
            phi = {n: p - 0.1 * gradient[n] for n, p in phi.items()}
        total = total + loss(phi, qx, qy) / len(tasks.support.x)
    body = [n for n in theta if not n.startswith("head.")]
    expected = torch.autograd.grad(total, [theta[n] for n in body])
    assert sorted(found) == sorted(f"model.{n}" for n in body)
    for name, grad in zip(body, expected, strict=True):
        torch.testing.assert_close(found[f"model.{name}"], grad, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("shots", [2, 12])
def test_ridge_is_the_dense_solution(shots: int):
    """With two examples a class the system of examples is smaller, with twelve that of features."""
    learner = shaken(mm.make_learner("r2d2", smooth_mlp()))
    sx, sy = one(tasks_of((6,), shots=shots).support)
    theta = {n: p.detach() for n, p in learner.theta().items()}
    x = features(learner.model, sx, theta)
    x = torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], 1)
    # Ridge regression as least squares with a row of zeros for each penalised weight.
    log_ridge, log_scale = (p.item() for p in learner.start.parameters())
    penalty = 16 / 32 * math.exp(12 * math.tanh(10 / 12 * log_ridge))
    scale = 10 * math.exp(12 * math.tanh(10 / 12 * log_scale))
    rows = torch.cat([x, penalty**0.5 * torch.eye(17, dtype=x.dtype)])
    targets = torch.cat([torch.eye(WAYS, dtype=x.dtype)[sy], torch.zeros(17, WAYS).double()])
    expected = scale * torch.linalg.lstsq(rows, targets).solution
    params = learner.adapt(mm.Batch(sx, sy)).params
    torch.testing.assert_close(params["head.weight"], expected[:16].T, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(params["head.bias"], expected[16], rtol=1e-8, atol=1e-10)


def test_ridge_fits_real_targets_and_needs_no_bias():
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(2, 8), nn.Tanh())
    model = nn.Sequential(body, nn.Linear(8, 1, bias=False)).double()
    x = torch.randn(5, 2, dtype=torch.float64)
    y = torch.randn(5, 3, dtype=torch.float64)  # three values, where the model has one
    learner = mm.make_learner("r2d2", model)
    adapted = learner.adapt(mm.Batch(x, y))
    found = body(x).detach()
    expected = torch.linalg.solve(found.T @ found + 0.25 * torch.eye(8).double(), found.T @ y)
    torch.testing.assert_close(adapted(x), found @ expected)
    with torch.no_grad():
        learner.start.log_ridge.fill_(-3)
    assert float((learner.adapt(mm.Batch(x, y))(x) - y).abs().max()) < 1e-2


@pytest.mark.parametrize("method", WITHOUT_STEPS)
@pytest.mark.parametrize("model", [smooth_mlp, smooth_conv])
def test_the_meta_gradient_without_a_step(method: str, model):
    tasks = point_tasks() if model is smooth_mlp else image_tasks()
    check_learner_gradient(moved(method, model(), steps=0), tasks)


def test_mt_nets_features_are_those_of_the_transformed_body():
    learner = shaken(mm.make_learner("mtnet:masks=false:start=prototypes", smooth_mlp(), steps=0))
    sx, sy = one(point_tasks().support)
    phi = learner.adapt(mm.Batch(sx, sy)).params
    means = class_means(features(learner.model, sx, phi), sy)
    assert "head" not in learner.geometry.prepare(None), "a computed head has no T of its own"
    torch.testing.assert_close(phi["head.weight"], 2 * means)


@pytest.mark.parametrize("word", HEADS)
def test_the_models_own_head_rests(word: str):
    learner = mm.make_learner("maml", smooth_mlp(), start=word)
    still = [n for n, p in learner.model.named_parameters() if not p.requires_grad]
    assert still == ["head.weight", "head.bias"]
    before = learner.meta_loss(point_tasks())
    with torch.no_grad():
        learner.model.head.weight.add_(1.0)
    assert torch.equal(learner.meta_loss(point_tasks()), before)


@pytest.mark.parametrize("word", HEADS)
def test_any_module_with_a_linear_head_and_autocast(word: str):
    learner = mm.make_learner(f"maml:start={word}", plain().float(), steps=1)
    x, y = one(point_tasks().support)
    learner.configure(autocast=torch.bfloat16)
    params = learner.adapt(mm.Batch(x.float(), y)).params
    assert {p.dtype for p in params.values()} == {torch.float32}


class CalledTwice(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3, 3)

    def forward(self, x):
        return self.head(self.head(x))


def tied_head() -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    model[2].weight = model[0].weight
    return model


BATCH = mm.Batch(torch.randn(6, 3), torch.arange(3).repeat(2))
REFUSED = {
    "no bias for prototypes": (
        lambda: mm.make_learner("protonet", nn.Sequential(nn.Linear(3, 3, bias=False))),
        "has no bias",
    ),
    "a tied head": (lambda: mm.make_learner("protonet", tied_head()), "shares a parameter"),
    "a head called twice": (
        lambda: mm.make_learner("protonet", CalledTwice()).adapt(BATCH),
        "called 2 times",
    ),
    "a head that does not adapt": (
        lambda: make("ridge", smooth_mlp(), ["blocks.0.linear.weight"]),
        "head.weight does not adapt",
    ),
    "another start than its own": (
        lambda: mm.make_learner("protonet:start=ridge", smooth_mlp()),
        "defined by the start 'prototypes'",
    ),
    "an unknown start": (
        lambda: mm.make_learner("maml", smooth_mlp(), start="lda"),
        "choose from primal, dual, prototypes, ridge, svm",
    ),
    **{
        f"real targets for {word}": (
            lambda word=word: mm.make_learner("maml", nn.Linear(3, 1), start=word).adapt(
                mm.Batch(torch.zeros(2, 3), torch.zeros(2, 1))
            ),
            "use start=ridge",
        )
        for word in ("prototypes", "svm")
    },
}


@pytest.mark.parametrize("mistake", REFUSED)
def test_what_cannot_be_is_refused(mistake: str):
    attempt, words = REFUSED[mistake]
    with pytest.raises(ValueError, match=words):
        attempt()


class OwnStart(Start):
    shared = False

    def forward(self, theta, lower):
        # The head is the first layer's weight: each is a parameter of its own to the inner loop.
        return {**theta, "2.weight": theta["0.weight"] * 1.0}


def test_the_inner_gradient_by_one_parameter_does_not_go_through_another():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3)).double()
    tasks = tasks_of((3,))
    found = [
        meta_gradient(
            mm.Learner(model, start=OwnStart(), steps=2, lr=0.1, vectorize=vectorize), tasks
        )
        for vectorize in (False, True)
    ]
    assert relative_difference(*found) < 1e-12
