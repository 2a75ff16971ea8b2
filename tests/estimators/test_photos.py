"""A start with a backbone of its own, as the one for photographs that ships with the package."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import metamirror as mm
from metamirror.cli.main import main
from metamirror.data.glyphs import draw
from metamirror.estimators.familiarity import UnfamiliarExamplesWarning
from metamirror.estimators.starts import SHIPPED, backbone_of
from tests.estimators.test_backbones import LABELS, folder, own_home, pictures  # noqa: F401

# Pictures that are noise and colours look like no photographs.
pytestmark = pytest.mark.filterwarnings(
    "ignore::metamirror.estimators.familiarity.UnfamiliarExamplesWarning"
)


def test_its_folder_says_how_it_was_made_and_is_small():
    files = [file for file in (SHIPPED / "photos").rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) < 4_000_000
    for command, part in (("train", ""), ("train", "backbone"), ("pretrain", "backbone")):
        words = (SHIPPED / "photos" / part / "start.json").read_text()
        assert f"metamirror {command}" in words
    assert backbone_of("photos") == SHIPPED / "photos" / "backbone"
    assert backbone_of("glyphs-maml") is None


def test_photographs_are_told_apart_one_by_one():
    images = pictures(size=(90, 120))
    clf = mm.FewShotClassifier("photos").fit(images, LABELS)
    assert clf.score(images, LABELS) == 1
    together, alone = clf.predict_proba(images), clf.predict_proba(images[:1])
    np.testing.assert_allclose(together[:1], alone, rtol=1e-4)


@pytest.mark.parametrize("classes", [2, 30])
def test_any_number_of_classes(classes: int):
    random = np.random.default_rng(0)
    images = random.integers(0, 255, (2 * classes, 20, 20, 3), dtype=np.uint8)
    labels = np.arange(2 * classes) % classes
    clf = mm.FewShotClassifier("photos").fit(images, labels)
    assert clf.predict_proba(images).shape == (2 * classes, classes)


def test_letters_are_noticed():
    letters = draw("abc", seed=0)
    with pytest.warns(UnfamiliarExamplesWarning, match="photos was trained on"):
        mm.FewShotClassifier("photos").fit(letters, list("abc"))


def test_a_saved_model_predicts_the_same(tmp_path: Path):
    images = pictures()
    clf = mm.FewShotClassifier("photos").fit(images, LABELS)
    clf.save(tmp_path / "mine.safetensors")
    again = mm.FewShotClassifier.load(tmp_path / "mine.safetensors")
    assert np.array_equal(again.predict_proba(images), clf.predict_proba(images))


def test_commands(folder: Path, tmp_path: Path, capsys):  # noqa: F811
    out = str(tmp_path / "mine.safetensors")
    assert main(["adapt", "photos", "--support", str(folder), "--out", out]) == 0
    assert main(["predict", out, str(folder / "green" / "01.png")]) == 0
    assert "green (" in capsys.readouterr().out


def test_its_body_is_a_backbone_for_a_start_of_ones_own():
    start = mm.make_learner("maml", mm.models.Linear(1600, 3), start="prototypes", steps=1, lr=0.1)
    clf = mm.FewShotClassifier(start, "photos").fit(pictures(), LABELS)
    assert clf.support_.x.shape == (12, 1600)
    assert torch.isfinite(clf.support_.x).all()
