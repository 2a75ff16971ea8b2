"""Temperatures from held-out examples."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

import metamirror as mm
from metamirror.estimators.calibration import HOTTEST, likeliest_temperature
from metamirror.estimators.fitting import adapt
from metamirror.estimators.held_out import adapting, folds, held_out_logits
from tests.estimators.stripes import fitted, start, stripes


def drawn(seed: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits, and labels that follow their probabilities."""
    random = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(count, 4, generator=random, dtype=torch.float64)
    return logits, logits.softmax(1).multinomial(1, generator=random).squeeze(1)


@given(st.integers(0, 2**31), st.floats(0.3, 3.0))
def test_no_temperature_is_likelier(seed: int, sharpness: float):
    logits, labels = drawn(seed, count=30)
    # torch spreads its share over all four classes, the label's own included.
    smooth = (1 - 31 / 32) * 4 / 3
    found = likeliest_temperature(logits * sharpness, labels)

    def loss(t: float) -> float:
        return float(F.cross_entropy(logits * sharpness / t, labels, label_smoothing=smooth))

    around = [t for t in (found / 1.05, found * 1.05) if 1 / HOTTEST <= t <= HOTTEST]
    assert all(loss(found) <= loss(t) + 1e-12 for t in around)


@pytest.mark.parametrize("sharpness", [0.2, 1.0, 5.0])
def test_the_true_temperature_is_found_from_many_examples(sharpness: float):
    logits, labels = drawn(seed=0, count=20_000)
    assert likeliest_temperature(logits * sharpness, labels) == pytest.approx(sharpness, rel=0.05)


def test_a_few_right_ones_are_no_proof_and_wrong_ones_stay_within_bounds():
    logits = torch.tensor([[30.0, 0.0, 0.0], [0.0, 30.0, 0.0]])
    t = likeliest_temperature(logits, torch.tensor([0, 1]))
    assert float((logits / t).softmax(1).max()) == pytest.approx(3 / 4)
    assert likeliest_temperature(logits, torch.tensor([1, 0])) == pytest.approx(HOTTEST)


def test_logits_that_hardly_differ_are_calibrated_too():
    logits = 1e-3 * torch.eye(3).repeat(10, 1)
    t = likeliest_temperature(logits, torch.arange(3).repeat(10))
    assert float((logits / t).softmax(1).max()) == pytest.approx(31 / 32)


def test_every_part_leaves_every_class_to_the_others():
    y = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 2, 1])
    part = folds(y, 3)
    assert sorted(set(part.tolist())) == [0, 1, 2]
    for i in range(3):
        assert set(y[part != i].tolist()) == {0, 1, 2}


def test_classes_of_unequal_size_are_held_out_in_turn():
    y = torch.tensor([0, 0, *[1] * 9])
    part = folds(y, 5)
    assert all({0, 1} <= set(y[part != i].tolist()) for i in range(5))


def test_the_temperature_is_that_of_predictions_for_held_out_examples():
    learner = start(norm="inductive")
    images, _ = stripes(classes=3, each=2)
    support = mm.Batch(
        torch.from_numpy(images).float()[:, None] / 255, torch.tensor([0, 0, 1, 1, 2, 2])
    )
    run = partial(adapt, learner, steps=3, lr=0.1)
    logits = torch.zeros(6, 3)
    for kept, out in (
        (slice(0, None, 2), slice(1, None, 2)),
        (slice(1, None, 2), slice(0, None, 2)),
    ):
        adapted = run(mm.Batch(support.x[kept], support.y[kept]))[0]
        logits[out] = adapted(support.x[out])[:, :3]
    expected = likeliest_temperature(logits, support.y)
    assert not math.isclose(expected, 1.0, abs_tol=0.01)
    found = held_out_logits(support, adapting(run))
    np.testing.assert_allclose(found, logits, atol=1e-4)
    assert likeliest_temperature(found, support.y) == pytest.approx(expected, rel=1e-3)


def test_the_held_out_accuracy_is_that_of_the_same_predictions(tmp_path):
    clf = mm.FewShotClassifier(start(), steps=5).fit(*(own := stripes(classes=3, each=4)))
    right = 0
    images, labels = np.asarray(own[0]), np.asarray(own[1])
    for i in range(4):
        out = np.arange(12) % 4 == i
        fold = mm.FewShotClassifier(start(), steps=5).fit(images[~out], labels[~out])
        right += int((fold.predict(images[out]) == labels[out]).sum())
    assert clf.held_out_accuracy_ == right / 12
    clf.save(tmp_path / "m")
    assert mm.FewShotClassifier.load(tmp_path / "m").held_out_accuracy_ == right / 12


def test_without_a_second_example_nothing_is_held_out():
    images, labels = stripes(classes=3, each=2)
    assert fitted(each=1).held_out_accuracy_ is None
    assert fitted(calibrate=False).held_out_accuracy_ is None
    clf = mm.FewShotClassifier(start()).fit(images[:-1], labels[:-1])
    assert (clf.held_out_accuracy_, clf.temperature_) == (None, 1.0)
    assert mm.FewShotClassifier(start()).fit(images, labels).held_out_accuracy_ is not None


def test_calibration_changes_probabilities_and_no_prediction():
    plain, calibrated = (fitted(each=3, calibrate=c) for c in (False, True))
    new, _ = stripes(classes=3, each=10, seed=1)
    assert plain.temperature_ == 1.0
    assert calibrated.temperature_ != 1.0
    assert (plain.predict(new) == calibrated.predict(new)).all()
    logits = np.log(plain.predict_proba(new)) / calibrated.temperature_
    expected = torch.from_numpy(logits).softmax(1)
    np.testing.assert_allclose(calibrated.predict_proba(new), expected, atol=1e-9)
