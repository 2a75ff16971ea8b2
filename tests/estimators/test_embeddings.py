"""Rows of numbers without a start: ridge regression on directions, for any number of classes."""

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

import metamirror as mm


def embeddings(classes: int, each: int, size: int = 24, seed: int = 0, spread: float = 0.7):
    """Directions around a mean for each class, of lengths that say nothing."""
    rng = np.random.default_rng(seed)
    means = np.random.default_rng(1).normal(size=(classes, size))
    x = np.repeat(means, each, 0) + spread * rng.normal(size=(classes * each, size))
    lengths = rng.uniform(0.1, 10, size=(len(x), 1))
    names = [f"class {i}" for i in range(classes)]
    return lengths * x, [name for name in names for _ in range(each)]


@pytest.mark.parametrize(("classes", "each"), [(2, 1), (5, 1), (5, 5), (37, 3), (200, 2)])
def test_any_number_of_classes_and_examples(classes: int, each: int):
    x, y = embeddings(classes, each)
    new, wanted = embeddings(classes, 4, seed=2)
    clf = mm.FewShotClassifier().fit(x, y)
    assert sorted(clf.classes_) == sorted(set(y))
    assert clf.n_features_in_ == 24
    # Lengths mislead the nearest class mean.
    means = np.stack([x[np.array(y) == name].mean(0) for name in clf.classes_])
    nearest = np.linalg.norm(new[:, None] - means, axis=2).argmin(1)
    assert clf.score(new, wanted) > np.mean(clf.classes_[nearest] == np.array(wanted))
    np.testing.assert_allclose(clf.predict_proba(new).sum(1), 1)


def test_logits_are_those_of_ridge_regression_on_rows_of_length_one():
    x, y = embeddings(4, 3)
    new, _ = embeddings(4, 2, seed=2)
    clf = mm.FewShotClassifier(calibrate=False).fit(x, y)

    def unit(rows: np.ndarray) -> np.ndarray:
        rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        return np.c_[rows, np.full(len(rows), (32 / 24) ** 0.5)]  # a bias beside the rows' length

    targets = np.array(y)[:, None] == clf.classes_
    ridge = Ridge(alpha=1.0, fit_intercept=False).fit(unit(x), targets)
    logits = torch.from_numpy(10 * ridge.predict(unit(new)))
    np.testing.assert_allclose(clf.predict_proba(new), logits.softmax(1), atol=1e-5)


@pytest.mark.parametrize("scale", [2.0**-110, 2.0**-40, 2.0**40, 2.0**110])
def test_the_scale_of_rows_changes_nothing(scale: float):
    x, y = embeddings(4, 3)
    new, _ = embeddings(4, 2, seed=2)
    usual = mm.FewShotClassifier().fit(x, y).predict_proba(new)
    found = mm.FewShotClassifier().fit(scale * x, y).predict_proba(scale * new)
    np.testing.assert_array_equal(found, usual)


def test_unequal_examples_and_a_class_that_comes_later():
    x, y = embeddings(3, 4)
    clf = mm.FewShotClassifier().fit(x[:9], y[:9])  # 4, 4 and 1
    assert clf.temperature_ == 1.0
    more, _ = embeddings(4, 2, seed=3)
    clf.partial_fit(more[6:], ["new", "new"])
    assert list(clf.classes_) == ["class 0", "class 1", "class 2", "new"]
    assert clf.predict_proba(x).shape == (12, 4)


def test_probabilities_are_calibrated_where_there_are_examples_to_do_it():
    x, y = embeddings(5, 10, spread=2.0)
    new, wanted = embeddings(5, 80, seed=2, spread=2.0)

    def loss(calibrate: bool) -> float:
        clf = mm.FewShotClassifier(calibrate=calibrate).fit(x, y)
        place = [list(clf.classes_).index(label) for label in wanted]
        return float(-np.log(clf.predict_proba(new)[np.arange(len(new)), place]).mean())

    assert loss(True) < loss(False)


def test_a_saved_model_predicts_the_same_bits(tmp_path: Path):
    x, y = embeddings(7, 2)
    clf = mm.FewShotClassifier().fit(x, y)
    clf.save(tmp_path / "model.safetensors")
    again = mm.FewShotClassifier.load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(clf.predict_proba(x), again.predict_proba(x))


def test_a_regressor_needs_no_start_either():
    rng = np.random.default_rng(0)
    x = 100 * rng.normal(size=(60, 5)) + 1000
    y = x @ rng.normal(size=5)
    found = mm.FewShotRegressor().fit(x[:40], y[:40])
    assert found.score(x[40:], y[40:]) > 0.95


def test_images_without_a_start_are_not_rows_and_other_shapes_are_refused():
    images = np.zeros((3, 28, 28), dtype=np.uint8)
    images[1, 10:12] = images[2, :, 10:12] = 255
    assert mm.FewShotClassifier().fit(images, list("abc")).learner_.config["method"] == "blockiaf"
    with pytest.raises(ValueError, match="no start is given, and X holds no rows of numbers"):
        mm.FewShotRegressor().fit(np.zeros((3, 4, 5)), [1, 2, 3])


def test_a_run_on_embeddings_is_a_start_for_them(tmp_path: Path):
    x, y = embeddings(20, 6)
    tasks = mm.tasks((x.astype("float32"), y), ways=5, shots=1, queries=3, batch=4)
    learner = mm.make_learner("maml", mm.models.Linear(24, 5, adapter=8), start="ridge", steps=2)
    optimizer = torch.optim.Adam(learner.parameters(), 1e-2)
    losses = []
    for step in range(60):
        optimizer.zero_grad()
        loss = learner.meta_loss(tasks[step])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert np.mean(losses[-10:]) < np.mean(losses[:10])
    new, labels = embeddings(12, 3, seed=5)
    assert mm.FewShotClassifier(learner).fit(new, labels).score(new, labels) > 0.9
