"""Quantities from a few examples."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import metamirror as mm


def start(outputs: int = 1) -> mm.Learner:
    torch.manual_seed(0)
    return mm.make_learner("maml", mm.models.MLP(1, outputs), steps=5, lr=0.05)


x = np.linspace(-1, 1, 12)[:, None]


def test_it_adapts_as_the_learner_does():
    y = np.sin(2 * x)
    learner = start()
    regressor = mm.FewShotRegressor(learner).fit(x, y)
    adapted = learner.adapt(mm.Batch(torch.from_numpy(x).float(), torch.from_numpy(y).float()))
    expected = adapted(torch.from_numpy(x).float())
    np.testing.assert_allclose(regressor.predict(x), expected, atol=1e-6)
    assert regressor.losses_[:-1] == pytest.approx(adapted.path.losses.tolist(), rel=1e-5)


def test_the_shape_of_y_comes_back():
    regressor = mm.FewShotRegressor(start())
    assert regressor.fit(x, x[:, 0]).predict(x).shape == (12,)
    assert regressor.fit(x, x).predict(x).shape == (12, 1)
    two = mm.FewShotRegressor(start(outputs=2)).fit(x, np.hstack([x, -x]))
    assert two.predict(x).shape == (12, 2)


def test_the_score_is_the_share_of_the_variance_explained():
    y = np.sin(2 * x[:, 0])
    regressor = mm.FewShotRegressor(start(), steps=200).fit(x, y)
    left = ((regressor.predict(x) - y) ** 2).sum()
    assert regressor.score(x, y) == pytest.approx(1 - left / ((y - y.mean()) ** 2).sum())
    assert regressor.score(x, y) > 0.9
    assert mm.FewShotRegressor(start()).fit(x, y).score(x, np.full(12, 3.0)) == 0.0


def test_partial_fit_adapts_again_to_all_examples():
    at_once = mm.FewShotRegressor(start()).fit(x, x**2)
    bit_by_bit = mm.FewShotRegressor(start()).partial_fit(x[:5], x[:5] ** 2)
    bit_by_bit.partial_fit(x[5:], x[5:] ** 2)
    np.testing.assert_array_equal(bit_by_bit.predict(x), at_once.predict(x))


def test_the_shipped_start_has_learned_sinusoids():
    tasks = mm.tasks("sinusoid", split="test", shots=10, batch=1)
    scores = []
    for step in range(20):
        support, query = tasks[step]
        curve = mm.FewShotRegressor("sinusoid-metasgd").fit(support.x[0], support.y[0])
        scores.append(curve.score(query.x[0], query.y[0]))
    assert np.median(scores) > 0.5


MISTAKES = {
    "two values for one output": (
        np.hstack([x, x]),
        "y has 2 values a row, and this start gives 1",
    ),
    "too few": (x[:5], r"y has shape \(5, 1\) for 12 examples"),
    "words": (["a"] * 12, "y does not consist of numbers"),
    "NaN": (x * float("nan"), r"y holds NaN or inf, first nan at index \(0, 0\)"),
    "none": (None, "y is None"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_named(case: str):
    y, words = MISTAKES[case]
    with pytest.raises(ValueError, match=words):
        mm.FewShotRegressor(start()).fit(x, y)


@pytest.mark.parametrize("offset", [300.0, 1e5])
def test_without_a_start_targets_may_lie_far_from_zero(offset):
    rng = np.random.default_rng(0)
    x, new = rng.normal(size=(20, 8)), rng.normal(size=(5, 8))
    y = x @ rng.normal(size=8)
    moved = mm.FewShotRegressor().fit(x, y + offset).predict(new)
    np.testing.assert_allclose(moved - offset, mm.FewShotRegressor().fit(x, y).predict(new), 0.05)
    alone = mm.FewShotRegressor().fit(x[:1], [offset]).predict(new)
    np.testing.assert_allclose(alone, offset, 1e-6)
