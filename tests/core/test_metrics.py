"""Metrics: their values against scikit-learn's, where they are absent, and the user's own."""

import numpy as np
import pytest
import torch
from sklearn import metrics as known
from torch import nn

import metamirror as mm
from metamirror.core.losses import IGNORED
from metamirror.core.metrics import LOSS, METRICS, Metric, described, make, metric_for, metric_in


def labels_and_logits(*places: int, ways: int = 4, seed: int = 0):
    torch.manual_seed(seed)
    return torch.randn(12, ways, *places), torch.randint(ways - 1, (12, *places))


@pytest.mark.parametrize("places", [(), (5,), (3, 4)])
def test_figures_of_labels_are_those_of_scikit_learn(places: tuple[int, ...]):
    logits, y = labels_and_logits(*places)
    answers, wanted = logits.argmax(1).flatten().numpy(), y.flatten().numpy()
    expected = {
        "accuracy": known.accuracy_score(wanted, answers),
        "iou": known.jaccard_score(wanted, answers, average="macro"),
        "f1": known.f1_score(wanted, answers, average="macro"),
    }
    for name, value in expected.items():
        assert METRICS[name](logits, y).item() == pytest.approx(value, rel=1e-5)


def test_figures_of_several_labels_at_once_are_those_of_scikit_learn():
    torch.manual_seed(0)
    logits, y = torch.randn(9, 5), torch.randint(2, (9, 5))
    answers, wanted = (logits > 0).flatten().numpy(), y.flatten().numpy()
    assert METRICS["f1"](logits, y).item() == pytest.approx(known.f1_score(wanted, answers))
    assert METRICS["iou"](logits, y).item() == pytest.approx(known.jaccard_score(wanted, answers))
    assert METRICS["accuracy"](logits, y) is None


def test_figures_of_numbers_are_those_of_scikit_learn():
    torch.manual_seed(0)
    output, y = torch.randn(20, 1), torch.randn(20, 1)
    pair = y.numpy(), output.numpy()
    expected = {
        "mse": known.mean_squared_error(*pair),
        "mae": known.mean_absolute_error(*pair),
        "r2": known.r2_score(*pair),
    }
    for name, value in expected.items():
        assert METRICS[name](output, y).item() == pytest.approx(value, rel=1e-5)


@pytest.mark.parametrize("name", ["accuracy", "iou", "f1"])
def test_labels_that_are_ignored_do_not_count(name: str):
    logits, y = labels_and_logits()
    some = y.clone()
    some[8:] = IGNORED
    assert METRICS[name](logits, some) == METRICS[name](logits[:8], y[:8])


@pytest.mark.parametrize("metric", METRICS.values(), ids=list(METRICS))
def test_a_metric_is_absent_where_shapes_do_not_allow_it(metric: Metric):
    for output, y in (
        (torch.zeros(3, 2, 2), torch.zeros(3, 5)),
        ({"a": torch.zeros(3)}, torch.zeros(3)),
        (torch.zeros(3), (torch.zeros(3), torch.zeros(3))),
        (torch.zeros(3, 2), torch.zeros(4, dtype=torch.long)),
    ):
        assert metric(output, y) is None


@pytest.mark.parametrize("name", ["accuracy", "iou", "f1"])
def test_metrics_run_under_vmap(name: str):
    logits, y = zip(*(labels_and_logits(seed=seed) for seed in range(3)), strict=True)
    found = torch.func.vmap(METRICS[name])(torch.stack(logits), torch.stack(y))
    each = [METRICS[name](*pair) for pair in zip(logits, y, strict=True)]
    assert torch.allclose(found, torch.stack(each))


def test_what_a_file_says_of_a_metric_is_found_again():
    own = Metric("hits", lambda output, y: 0.0, higher=False, percent=True)
    for metric in (*METRICS.values(), own):
        found = metric_in({**described(metric), metric.name: 1.0})
        assert (found.name, found.higher, found.percent) == (
            metric.name,
            metric.higher,
            metric.percent,
        )
    assert metric_in({"mse": 1.0, "ci95": 0.1}) is METRICS["mse"]
    assert metric_in({"loss": 1.0}) is LOSS
    assert metric_for({"a": torch.zeros(2)}) is LOSS


def median_error(output: torch.Tensor, y: torch.Tensor) -> float:
    return float(np.median((output - y).abs().numpy()))


def test_the_users_own_metric_is_what_an_evaluation_reports():
    worst = Metric("median_error", median_error, higher=False)
    learner = mm.make_learner("maml", mm.models.MLP(1, 1), metric=worst)
    found = mm.evaluate(learner, mm.tasks("sinusoid", "test"), n=4)
    assert found.metric == "median_error"
    assert found.mean == pytest.approx(np.mean([task.score for task in found.tasks]))
    assert found.mean != pytest.approx(np.mean([task.loss for task in found.tasks]))
    assert mm.evaluate(learner, mm.tasks("sinusoid", "test"), n=4).tasks[0].metric is worst


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        ("precision", "choose from accuracy"),
        (3, "give a name, a Metric or a function"),
        ("nowhere.at_all:all", "--import nowhere.at_all"),
    ],
)
def test_a_metric_that_is_none_is_refused(metric: object, words: str):
    with pytest.raises(ValueError, match=words):
        make(metric)


def test_a_metric_that_fails_or_gives_many_numbers_says_so():
    def broken(output: torch.Tensor, y: torch.Tensor) -> float:
        raise IndexError("no such place")

    with pytest.raises(ValueError, match="the metric broken failed: IndexError: no such place"):
        make(broken)(torch.zeros(2), torch.zeros(2))
    with pytest.raises(ValueError, match="it must give one"):
        Metric("many", lambda output, y: output)(torch.zeros(2), torch.zeros(2))
    with pytest.raises(ValueError, match="its name is a word"):
        Metric("loss", lambda output, y: 0.0)


def test_a_segmentation_is_trained_and_judged_by_its_overlap():
    torch.manual_seed(0)
    net = nn.Conv2d(1, 2, 3, padding=1)
    x = torch.randn(2, 4, 1, 6, 6)
    y = (x[:, :, 0] > 0).long()
    tasks = mm.Task(mm.Batch(x, y), mm.Batch(x, y))
    learner = mm.make_learner("metasgd", net, metric="iou", steps=2, lr=0.5)
    losses, _ = learner.meta_gradient(tasks)
    one = learner.adapt(mm.Batch(x[0], y[0]))
    assert losses.score[0] == pytest.approx(METRICS["iou"](one(x[0]), y[0]).item(), abs=1e-5)
