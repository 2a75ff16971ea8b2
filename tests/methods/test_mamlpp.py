"""Rates and normalisations of each step, the losses of all steps, and the order of derivatives."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import metamirror as mm
from metamirror.methods.mamlpp import loss_weights
from metamirror.testing.methods import (
    check_learner_gradient,
    check_vmap,
    meta_gradient,
    relative_difference,
)
from metamirror.testing.networks import smooth_conv, smooth_mlp
from metamirror.training.train import train
from tests.networks import NETWORKS, conv4, image_tasks, point_tasks, shaken
from tests.runs import small

OFF = "mamlpp:rates=false:norms=false:all_losses_until=0:first_order_until=0"
STEPS, LR = 3, 0.1


def learner_of(spec: str = "mamlpp", progress: float = 1.0, model=None) -> mm.Learner:
    learner = shaken(mm.make_learner(spec, model or smooth_conv(), steps=STEPS, lr=LR))
    learner.progress = progress
    return learner


def support() -> mm.Batch:
    return mm.Batch(*(t[0] for t in image_tasks().support))


# MAML


@pytest.mark.parametrize("progress", [0.0, 1.0])
@pytest.mark.parametrize(("model", "tasks"), [*NETWORKS.values(), (conv4, lambda: image_tasks(16))])
def test_with_everything_off_it_is_maml_bit_for_bit(model, tasks, progress: float):
    ours, theirs = (learner_of(spec, progress, model()) for spec in (OFF, "maml"))
    (found, grads), (expected, wanted) = (one.meta_gradient(tasks()) for one in (ours, theirs))
    assert torch.equal(found.loss, expected.loss)
    assert len(grads) == len(wanted)
    assert all(torch.equal(a, b) for a, b in zip(grads, wanted, strict=True))
    batch = mm.Batch(*(t[0] for t in tasks().support))
    adapted, by_maml = (one.adapt(batch) for one in (ours, theirs))
    assert adapted.params.keys() == by_maml.params.keys()
    assert all(torch.equal(p, by_maml.params[name]) for name, p in adapted.params.items())


def test_rates_start_as_maml_in_single_precision_too():
    ours, theirs = (
        mm.make_learner(spec, smooth_mlp().float(), steps=3, lr=0.1)
        for spec in ("mamlpp:norms=false", "maml")
    )
    batch = mm.Batch(*(t[0] for t in point_tasks().support))
    batch = mm.Batch(batch.x.float(), batch.y)
    params = theirs.adapt(batch).params
    assert all(torch.equal(p, params[name]) for name, p in ours.adapt(batch).params.items())


# By the formulas, with nothing shared


def forward(p: dict[str, Tensor], x: Tensor) -> Tensor:
    """The network of `smooth_conv`, with torch's own batch normalisation."""
    for name in ("first", "second"):
        x = F.conv2d(x, p[f"{name}_conv.weight"], p[f"{name}_conv.bias"], padding=1)
        scale, shift = p[f"{name}_norm.weight"], p[f"{name}_norm.bias"]
        x = F.batch_norm(x, None, None, scale, shift, training=True)
        x = F.avg_pool2d(torch.tanh(x), 2)
    return F.linear(x.flatten(1), p["head.weight"], p["head.bias"])


def naive_loss(p: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
    return -forward(p, x).log_softmax(1)[torch.arange(len(y)), y].mean()


def naive_weights(steps: int, epoch: float, epochs: float) -> list[float]:
    """The released schedule, at an epoch of those that the annealing takes."""
    weights = [1 / steps] * steps
    decay = 1 / steps / epochs
    for i in range(steps - 1):
        weights[i] = max(weights[i] - epoch * decay, 0.03 / steps)
    weights[-1] = min(weights[-1] + epoch * (steps - 1) * decay, 1 - (steps - 1) * 0.03 / steps)
    return weights


def naive_meta_loss(learner: mm.Learner, tasks: mm.Task, weights: list[float]) -> Tensor:
    geometry = learner.geometry
    theta = dict(learner.model.named_parameters())
    own = [{name: p for name, p in theta.items() if "norm" in name}]
    tables = dict(zip(geometry.norm_names, geometry.norms, strict=True))
    own += [{name: p[k] for name, p in tables.items()} for k in range(STEPS - 1)]
    (sx, sy), (qx, qy) = tasks
    total = torch.zeros((), dtype=torch.float64)
    for t in range(len(sx)):
        z = {name: p for name, p in theta.items() if "norm" not in name}
        for k in range(STEPS):
            loss = naive_loss({**own[k], **z}, sx[t], sy[t])
            grads = torch.autograd.grad(loss, list(z.values()), create_graph=True)
            for column, (name, grad) in enumerate(zip(list(z), grads, strict=True)):
                z[name] = z[name] - LR * (1 + 10 * geometry.rates[k, column]) * grad
            total = total + weights[k] * naive_loss({**own[k], **z}, qx[t], qy[t])
    return total / len(sx)


@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize("epoch", [0, 1, 7, 14, 14.9])
def test_the_weights_are_the_released_ones(steps: int, epoch: float):
    expected = naive_weights(steps, epoch, 15)
    assert loss_weights(steps, epoch / 15) == pytest.approx(expected, abs=1e-15)
    assert sum(expected) == pytest.approx(1)


@pytest.mark.parametrize(
    ("progress", "weights"),
    [
        (0.0, [1 / 3, 1 / 3, 1 / 3]),
        (0.05, naive_weights(STEPS, 5, 15)),
        (0.149, naive_weights(STEPS, 14.9, 15)),
        (0.15, [0.0, 0.0, 1.0]),
        (1.0, [0.0, 0.0, 1.0]),
    ],
)
def test_the_meta_gradient_is_that_of_a_naive_version(progress: float, weights: list[float]):
    learner = learner_of("mamlpp:first_order_until=0", progress)
    tasks = image_tasks()
    found = meta_gradient(learner, tasks)
    expected = naive_meta_loss(learner, tasks, weights)
    torch.testing.assert_close(learner.meta_loss(tasks), expected, rtol=1e-12, atol=0)
    parameters = dict(learner.named_parameters())
    grads = torch.autograd.grad(expected, list(parameters.values()))
    wanted = dict(zip(parameters, grads, strict=True))
    assert relative_difference(found, wanted) < 1e-10


def test_every_parameter_of_a_step_is_learned():
    learner = learner_of()
    sizes = {name: p.numel() for name, p in learner.geometry.named_parameters()}
    adapting = len(learner.adapts)
    assert sum(sizes.values()) == STEPS * adapting + (STEPS - 1) * 4 * 4
    assert not any("norm" in name for name in learner.adapts)


@pytest.mark.parametrize("progress", [0.05, 0.14])
def test_the_meta_gradient_agrees_with_finite_differences_while_the_losses_anneal(progress: float):
    check_learner_gradient(learner_of("mamlpp:first_order_until=0", progress), image_tasks())


def test_tasks_under_vmap_anneal_as_well(monkeypatch):
    init = mm.Learner.__init__

    def begun(self, *args, **options):
        init(self, *args, **options)
        self.progress = 0.05

    monkeypatch.setattr(mm.Learner, "__init__", begun)
    check_vmap("mamlpp:first_order_until=0", smooth_conv(), image_tasks())
    check_vmap("mamlpp", smooth_conv(), image_tasks())


# First order, then second


@pytest.mark.parametrize(("progress", "alike"), [(0.3, "first"), (0.5, "unrolled")])
def test_the_first_half_of_training_is_first_order(progress: float, alike: str):
    tasks = image_tasks()
    found = meta_gradient(learner_of(progress=progress), tasks)
    for adjoint in ("first", "unrolled"):
        wanted = meta_gradient(learner_of(f"mamlpp:first_order_until=0:adjoint={adjoint}"), tasks)
        difference = relative_difference(found, wanted)
        assert difference == 0 if adjoint == alike else difference > 1e-4


# Further steps, and learners on disk


def test_further_steps_have_what_the_last_one_has():
    learner = learner_of()
    names, last = learner.geometry.norm_names, STEPS - 1
    rates = LR * (1 + 10 * learner.geometry.rates.detach())
    norms = {n: p[-1].detach() for n, p in zip(names, learner.geometry.norms, strict=True)}
    five = learner.adapt(support(), steps=5, keep=True)
    for before, after in zip(five.path.points[last:-1], five.path.points[STEPS:], strict=True):
        z = {n: before[n].clone().requires_grad_() for n in learner.adapts}
        grads = torch.autograd.grad(naive_loss({**norms, **z}, *support()), list(z.values()))
        for column, (name, grad) in enumerate(zip(z, grads, strict=True)):
            expected = before[name] - rates[last, column] * grad
            torch.testing.assert_close(after[name], expected, rtol=0, atol=1e-12)
    assert all(torch.equal(five.params[name], p) for name, p in norms.items())


@pytest.mark.parametrize("steps", [1, 2])
def test_after_fewer_steps_the_query_is_predicted_as_the_last_of_them(steps: int):
    """As in training, where the query after step k has the scale and shift of step k."""
    learner = learner_of()
    own = dict(learner.model.named_parameters())
    tables = dict(zip(learner.geometry.norm_names, learner.geometry.norms, strict=True))
    adapted = learner.adapt(support(), steps=steps)
    *_, walked = learner.adaptations(support(), steps=steps)
    for name, table in tables.items():
        expected = own[name] if steps == 1 else table[steps - 2]
        for found in (adapted, walked):
            assert torch.equal(found.params.get(name, own[name]), expected)
    p = {name: value.detach() for name, value in {**own, **adapted.params}.items()}
    torch.testing.assert_close(adapted(support().x), forward(p, support().x))


def test_the_gradients_norm_is_that_of_what_adapts():
    learner = learner_of()
    path = learner.adapt(support(), keep=True).path
    for k in range(STEPS):
        z = {n: path.points[k][n].requires_grad_() for n in learner.adapts}
        own = {n: p.detach() for n, p in learner.model.named_parameters()}
        loss = naive_loss({**own, **path.points[k], **z}, *support())
        grads = torch.autograd.grad(loss, list(z.values()))
        norm = torch.cat([g.flatten() for g in grads]).norm()
        torch.testing.assert_close(path.grad_norms[k], norm)


def test_an_adapted_model_does_not_follow_the_learner():
    learner = learner_of()
    adapted = learner.adapt(support())
    before = adapted(support().x)
    shaken(learner, 1.0)
    assert torch.equal(adapted(support().x), before)


def test_a_learner_comes_back_with_the_steps_it_was_built_for(tmp_path: Path):
    learner = mm.make_learner("mamlpp", mm.models.Conv4(3, 1, 16, 4), steps=2, lr=LR)
    learner = shaken(learner)
    learner.configure(steps=5)
    mm.save(learner, tmp_path)
    again = mm.load(tmp_path)
    assert again.steps == 5
    tasks = image_tasks(16)
    batch = mm.Batch(tasks.support.x[0].float(), tasks.support.y[0])
    params = learner.adapt(batch).params
    assert all(torch.equal(p, params[name]) for name, p in again.adapt(batch).params.items())


# How far training is


def test_training_tells_the_learner_how_far_it_is(tmp_path: Path, monkeypatch):
    seen = []
    real = mm.Learner.meta_gradient

    def watched(self, *args, **options):
        seen.append(self.progress)
        return real(self, *args, **options)

    monkeypatch.setattr(mm.Learner, "meta_gradient", watched)
    learner = train(small(method="mamlpp", iterations=4), tmp_path)
    assert seen == [0, 0.25, 0.5, 0.75]
    assert learner.progress == 1
    assert mm.load(tmp_path).progress == 1


def test_a_run_that_grows_is_said_to_anneal_otherwise(tmp_path: Path, capsys):
    train(small(method="mamlpp", iterations=3), tmp_path)
    assert "anneals" not in capsys.readouterr().err
    train(small(method="mamlpp", iterations=6), tmp_path, resume=True)
    assert "mamlpp anneals over the run, which was 3 iterations long" in capsys.readouterr().err


# Refusals


@pytest.mark.parametrize("name", ["all_losses_until", "first_order_until"])
@pytest.mark.parametrize("value", [-0.1, 1.5, float("nan")])
def test_a_share_that_is_none_is_refused(name: str, value: float):
    with pytest.raises(ValueError, match=f"mamlpp:{name} is .*: from 0 to 1"):
        mm.make_learner("mamlpp", smooth_mlp(), **{name: value})
