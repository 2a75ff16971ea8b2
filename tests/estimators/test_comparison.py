"""A few-shot classifier beside simpler ones, on the user's own examples."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import NearestCentroid

import metamirror as mm
from metamirror.cli.main import main
from metamirror.estimators.comparison import LOGISTIC, NEAREST, OURS, difference_of, recommend
from metamirror.estimators.held_out import folds
from metamirror.linalg.logistic import logistic_regression
from tests.estimators.stripes import SIZE, start, stripes


def blobs(classes: int, each: int, spread: float, seed: int = 0) -> tuple[np.ndarray, list[int]]:
    random = np.random.default_rng(seed)
    labels = np.arange(classes * each) % classes
    centres = random.normal(size=(classes, 16))
    return centres[labels] + spread * random.normal(size=(len(labels), 16)), labels.tolist()


@pytest.mark.parametrize(
    ("rows", "features", "classes", "scale"), [(25, 32, 5, 1), (25, 200, 5, 5), (60, 8, 3, 1)]
)
def test_logistic_regression_is_scikit_learns(rows: int, features: int, classes: int, scale: int):
    random = np.random.default_rng(0)
    x, y = scale * random.normal(size=(rows, features)), np.arange(rows) % classes
    weight, bias = logistic_regression(torch.from_numpy(x), torch.from_numpy(y))
    ours = (torch.from_numpy(x) @ weight.T + bias).softmax(1).numpy()
    theirs = LogisticRegression(tol=1e-10, max_iter=10_000).fit(x, y)
    np.testing.assert_allclose(ours, theirs.predict_proba(x), atol=1e-4)
    np.testing.assert_allclose(weight, theirs.coef_, atol=1e-4)


def test_rows_are_compared_as_scikit_learn_would():
    x, y = blobs(classes=3, each=6, spread=1.2)
    found = {row.name: row for row in mm.FewShotClassifier().compare(x, y).rows}
    labels, part = np.array(y), folds(torch.tensor(y), 5).numpy()
    for name, model in ((NEAREST, NearestCentroid()), (LOGISTIC, LogisticRegression())):
        right = [
            (model.fit(x[part != i], labels[part != i]).predict(x[part == i]) == labels[part == i])
            for i in range(5)
        ]
        assert found[name].accuracy.mean == pytest.approx(100 * np.concatenate(right).mean())
    clf = mm.FewShotClassifier().fit(x, y)
    assert found[OURS].accuracy.mean == pytest.approx(100 * clf.held_out_accuracy_)
    assert found[OURS].ours_less_this is None


def note(seen: dict, name: str, layer: object, given: tuple, output: object) -> None:
    seen[name] = given[0].detach().numpy()


def test_images_are_compared_on_the_features_before_the_head():
    """With the statistics of the examples that were learned from, and not of those held out."""
    learner = start(norm="inductive")
    images, labels = stripes(classes=3, each=3)
    found = mm.FewShotClassifier(learner).compare(images, labels)
    x = torch.from_numpy(images).float()[:, None] / 255
    y = np.arange(9) // 3
    part = np.arange(9) % 3
    right = []
    for i in range(3):
        others, out = part != i, part == i
        statistics = learner.statistics(learner.theta(), mm.Batch(x[others], None))
        seen = {}
        for name, own in (("others", x[others]), ("out", x[out])):
            hook = learner.model.head.register_forward_hook(partial(note, seen, name))
            learner.predict(learner.theta(), own, statistics)
            hook.remove()
        nearest = NearestCentroid().fit(seen["others"], y[others])
        right.append(nearest.predict(seen["out"]) == y[out])
    assert found.rows[0].accuracy.mean == pytest.approx(100 * np.concatenate(right).mean())


def test_what_is_easy_needs_nothing_more_than_class_means():
    x, y = blobs(classes=3, each=10, spread=0.1)
    found = mm.FewShotClassifier().compare(x, y)
    assert [row.accuracy.mean for row in found.rows] == [100] * 3
    assert found.recommendation == NEAREST
    assert all(row.accuracy.low < 95 for row in found.rows), "thirty examples prove no perfection"
    assert found.confusion.tolist() == np.diag([10] * 3).tolist()
    assert found.doubtful == []


def test_the_better_one_is_recommended_where_it_is_significantly_better():
    ours, half = np.ones(40), np.tile([0.0, 1.0], 20)
    y = torch.arange(40) % 4
    assert recommend({NEAREST: half, LOGISTIC: half, OURS: ours}, y)[0] == OURS
    name, reason = recommend({NEAREST: half, LOGISTIC: ours, OURS: ours}, y)
    assert (name, reason) == (LOGISTIC, "the simpler ones are significantly worse")
    almost = np.append(np.ones(36), np.zeros(4))
    name, reason = recommend({NEAREST: almost, LOGISTIC: half, OURS: ours}, y)
    assert name == NEAREST
    assert re.search(r"not significantly worse \(-10\.0 \[.*about \d+ more example", reason)


def test_as_many_examples_as_it_says_would_settle_it():
    ours = np.append(np.ones(28), [1.0, 1.0])
    simple = np.append(np.ones(28), [0.0, 0.0])
    _, reason = recommend({NEAREST: simple, OURS: ours}, torch.arange(30) % 3)
    more = int(re.search(r"about (\d+) more", reason)[1])
    times = (30 + 3 * more) / 30

    def settled(count: float) -> bool:
        """The same share of each outcome, in more examples."""
        wrong = round(2 * count)
        gap = np.append(np.zeros(round(28 * count)), -np.ones(wrong))
        return difference_of(gap, np.zeros(len(gap))).sign == "lower"

    assert not settled(1)
    # The two examples that are added for caution weigh less among more.
    assert settled(times)


def test_noise_is_not_better_than_guessing():
    x = np.random.default_rng(0).normal(size=(20, 8))
    found = mm.FewShotClassifier().compare(x, ["a", "b"] * 10)
    assert "None is significantly better than guessing (50.0 %)" in found.reason


def test_a_wrong_label_is_the_most_doubtful():
    x, y = blobs(classes=3, each=8, spread=0.2)
    labels = ["abc"[i] for i in y]
    labels[5] = "a"  # it is c
    found = mm.FewShotClassifier().compare(x, labels)
    first = found.doubtful[0]
    assert (first.index, first.label, first.predicted) == (5, "a", "c")
    assert first.probability < 0.3
    assert found.confusion[0, 2] == 1
    assert found.confused()[0] == (0, 2, 1)
    text = str(found)
    assert "example 5 (a at" in text
    assert "a for c (1)" in text
    assert f"recommended: {found.recommendation}" in text


def test_one_example_of_a_class_is_not_enough():
    with pytest.raises(ValueError, match=r"class 'b' has one example.*two or more of each class"):
        mm.FewShotClassifier().compare(np.eye(3), ["a", "a", "b"])


def test_comparing_fits_nothing_that_stays():
    clf = mm.FewShotClassifier(start())
    clf.compare(*stripes(classes=2, each=2))
    with pytest.raises(ValueError, match="not fitted yet"):
        clf.predict(np.zeros((1, SIZE, SIZE)))


@pytest.fixture
def support(tmp_path: Path) -> Path:
    images, labels = stripes(classes=3, each=4)
    names = {"class 0": "<script>", "class 1": "b & c", "class 2": "plain"}
    labels[0] = "class 2"  # it is of class 0
    for i, (image, label) in enumerate(zip(images, labels, strict=True)):
        (tmp_path / "support" / names[label]).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(tmp_path / "support" / names[label] / f"{i}.png")
    mm.save(start(), tmp_path / "start")
    return tmp_path


def test_adapt_compares_prints_and_writes_a_page(support: Path, capsys):
    words = ["adapt", str(support / "start"), "--support", str(support / "support"), "--compare"]
    words += ["--out", str(support / "m"), "--steps", "10"]
    assert main([*words, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    found = facts["comparison"]
    assert [row["name"] for row in found["rows"]] == [NEAREST, LOGISTIC, OURS]
    assert found["rows"][-1]["accuracy"]["mean"] == pytest.approx(100 * facts["held_out_accuracy"])
    assert sum(map(sum, found["confusion"])) == 12
    page = Path(facts["page"]).read_text()
    assert facts["page"] == str(support / "m.html")
    assert found["recommendation"] in page
    assert "<script>" not in page
    assert "b &amp; c" in page
    assert page.count('src="data:image/png;base64,') == len(found["doubtful"]) > 0
    assert not re.search(r'(src|href)="(?!data:|#)', page), "the page loads something"
    assert main(words) == 0
    text = capsys.readouterr().out
    assert "recommended: " in text
    assert f"held-out accuracy of these images: {facts['held_out_accuracy']:.1%}" in text
    assert str(support / "support" / "plain" / "0.png") in text, "the wrong label is not doubted"


@pytest.mark.parametrize("classes", [2, 200])
def test_any_number_of_classes_where_the_head_is_computed(classes: int, tmp_path: Path, capsys):
    """And unequal numbers of examples."""
    random = np.random.default_rng(0)
    for c in range(classes):
        place = tmp_path / "support" / f"{c:03}"
        place.mkdir(parents=True)
        base = random.integers(0, 256, (7, 7), dtype=np.uint8)
        for i in range(2 + c % 3):
            noisy = np.clip(base + random.normal(scale=10, size=base.shape), 0, 255)
            image = Image.fromarray(noisy.astype(np.uint8)).resize((SIZE, SIZE))
            image.save(place / f"{i}.png")
    mm.save(start("protonet"), tmp_path / "start")
    words = ["adapt", str(tmp_path / "start"), "--support", str(tmp_path / "support")]
    assert main([*words, "--out", str(tmp_path / "m"), "--compare", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["classes"]) == classes
    assert set(found["examples"].values()) == {2 + c % 3 for c in range(classes)}
    assert found["held_out_accuracy"] > 1.5 / classes
    assert Path(found["page"]).stat().st_size < 500_000
    if classes > 5:
        mm.save(start(), tmp_path / "start")
        assert main([*words, "--out", str(tmp_path / "m")]) == 2
        told = capsys.readouterr().err
        assert "at most 5" in told
        assert "protonet" in told
