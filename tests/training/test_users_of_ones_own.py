"""What a researcher with a model, a loss and tasks of their own relies on."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import metamirror as mm
from metamirror.core.metrics import LOSS, METRICS


class Noisy(nn.Module):
    """Dropout as a layer, and as a function that asks for the mode."""

    def __init__(self):
        super().__init__()
        self.body, self.drop, self.head = nn.Linear(1, 16), nn.Dropout(0.5), nn.Linear(16, 1)

    def forward(self, x):
        x = nn.functional.dropout(self.body(x).relu(), 0.5, self.training)
        return self.head(self.drop(x))


def huber(output, y):
    return nn.functional.huber_loss(output, y)


def hits(output, y):
    return ((output - y).abs() < 1).double().mean()


def test_an_evaluation_has_no_dropout_and_leaves_the_mode_as_it_was():
    learner = mm.make_learner("maml", Noisy(), steps=2)
    tasks = mm.tasks("sinusoid", "test")
    first, second = (mm.evaluate(learner, tasks, n=6).mean for _ in range(2))
    assert first == second
    assert learner.training
    assert learner.model.drop.training
    assert first == mm.evaluate(learner.eval(), tasks, n=6).mean
    assert not learner.model.drop.training


def test_batch_normalisation_of_torch_still_uses_the_batch():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 8), mm.models.BatchNorm(8), nn.Tanh(), nn.Linear(8, 1))
    learner = mm.make_learner("maml", model, steps=1)
    task = mm.tasks("sinusoid", "test", batch=1).task(0, 0)
    adapted = learner.adapt(task.support)
    by_hand = nn.functional.mse_loss(adapted(task.query.x), task.query.y).item()
    found = mm.evaluate(learner, mm.tasks("sinusoid", "test", batch=1), n=2).tasks[0]
    assert found.loss == pytest.approx(by_hand, rel=1e-5)


def test_with_a_loss_of_ones_own_the_loss_is_the_figure_of_numbers():
    targets = torch.zeros(3, 1)
    usual, own = (mm.make_learner("maml", mm.models.MLP(1, 1), loss=f) for f in (None, huber))
    assert usual.settings.metric_of(targets) is METRICS["mse"]
    assert own.settings.metric_of(targets) is LOSS
    assert own.settings.metric_of(torch.zeros(3, dtype=torch.long)) is METRICS["accuracy"]
    found = mm.evaluate(own, mm.tasks("sinusoid", "test"), n=3)
    assert found.metric == "loss"
    assert found.mean == pytest.approx(np.mean([task.loss for task in found.tasks]))
    assert repr(found).startswith("loss ")


def test_a_metric_without_a_value_is_said_to_be_left_out(capsys: pytest.CaptureFixture[str]):
    learner = mm.make_learner("maml", mm.models.MLP(1, 1), metric=lambda output, y: math.nan)
    assert mm.evaluate(learner, mm.tasks("sinusoid", "test"), n=3).metric == "loss"
    assert "has no value on any of these tasks" in capsys.readouterr().err


def test_a_metric_of_ones_own_is_asked_for_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    mm.save(mm.make_learner("maml", mm.models.MLP(1, 1), metric=hits), tmp_path)
    assert mm.load(tmp_path).settings.metric is None
    assert "pass metric=" in capsys.readouterr().err
    assert mm.load(tmp_path, metric=hits).settings.metric.name == "hits"


def test_what_makes_no_tasks_is_named():
    class Tasks:
        def task(self, step, index):
            raise NotImplementedError

    class Odd:
        def task(self, user):
            return user

    for source in (Tasks, Odd()):
        with pytest.raises(ValueError, match=r"a method task\(step, index\)"):
            mm.tasks(source)
