"""Examples that do not look like what a start was trained on are noticed; others are not."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import metamirror as mm
from metamirror.cli.main import main
from metamirror.data.image_ranges import SEEN, ranges_of, statistics_of
from metamirror.estimators.familiarity import UnfamiliarExamplesWarning, unfamiliar
from metamirror.estimators.starts import SHIPPED
from tests.estimators.stripes import start, stripes

START = "glyphs-maml"


def letters(shots: int = 1) -> mm.Batch:
    support = mm.tasks("glyphs", split="test", shots=shots, batch=1)[0].support
    return mm.Batch(support.x[0], support.y[0])


def clouds(count: int, seed: int = 0) -> np.ndarray:
    """Smooth images in colour with every shade, as photographs have them."""
    small = np.random.default_rng(seed).integers(0, 256, (count, 6, 6, 3), dtype=np.uint8)
    big = [Image.fromarray(one).resize((60, 60), Image.Resampling.BICUBIC) for one in small]
    return np.stack([np.asarray(one) for one in big])


def test_what_was_trained_on_is_familiar():
    x, y = letters()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mm.FewShotClassifier(START).fit(x, y)


def test_photographs_are_not_and_the_model_is_fitted_all_the_same():
    clf = mm.FewShotClassifier(START)
    with pytest.warns(UnfamiliarExamplesWarning, match="do not look like.*glyphs-maml") as told:
        clf.fit(clouds(4), [0, 0, 1, 1])
    assert len(told) == 1
    assert told[0].filename == __file__
    assert "metamirror train" in str(told[0].message)
    assert clf.predict(clouds(4)).shape == (4,)


def test_nor_are_those_that_come_later():
    clf = mm.FewShotClassifier(START).fit(*letters())
    with pytest.warns(UnfamiliarExamplesWarning, match="do not look like.*glyphs-maml") as told:
        clf.partial_fit(clouds(2), [0, 1])
    assert [one.filename for one in told] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clf.partial_fit(*letters())


def test_dark_on_light_has_its_own_way_out():
    x, y = letters()
    with pytest.warns(UnfamiliarExamplesWarning, match="use invert"):
        mm.FewShotClassifier(START).fit(1 - x, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mm.FewShotClassifier(START, invert=True).fit(1 - x, y)


def test_a_learner_of_which_nobody_knows_what_it_saw_is_left_alone(tmp_path: Path):
    mm.save(start(), tmp_path / "start")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mm.FewShotClassifier(start()).fit(*stripes(classes=3, each=1))
        mm.FewShotClassifier(tmp_path / "start").fit(*stripes(classes=3, each=1))


def test_a_run_says_what_it_was_trained_on(tmp_path: Path, capsys):
    words = ["train", "--method", "maml", "--width", "2", "--iterations", "1", "--steps", "1"]
    assert main([*words, "--validate-every", "0", "--out", str(tmp_path / "run")]) == 0
    assert unfamiliar(tmp_path / "run", letters().x) is None
    assert "run was trained on" in (unfamiliar(tmp_path / "run", 1 - letters().x) or "")
    (tmp_path / "run" / SEEN).write_text('{"ranges": {"ground": 3}}')
    with pytest.raises(ValueError, match=r"seen\.json holds no ranges of images"):
        unfamiliar(tmp_path / "run", letters().x)
    sines = ["train", "--method", "maml", "--data", "sinusoid", "--iterations", "1"]
    assert main([*sines, "--validate-every", "0", "--out", str(tmp_path / "sines")]) == 0
    assert not (tmp_path / "sines" / SEEN).exists()


def test_the_shipped_ranges_are_those_of_the_training_letters():
    stream = mm.tasks("glyphs", split="train", ways=5, shots=5, queries=1, batch=1, seed=1)
    expected = ranges_of(stream[i].support.x[0] for i in range(40))
    found = json.loads((SHIPPED / START / SEEN).read_text())["ranges"]
    assert found.keys() == expected.keys()
    for name, ends in found.items():
        assert ends == pytest.approx(expected[name], abs=0.03), name


def test_statistics_say_what_they_are_named_after():
    grey, colour = torch.full((1, 3, 8, 8), 0.5), torch.zeros(1, 3, 8, 8)
    colour[:, 0] = 1
    checks = (torch.arange(8) % 2).float().expand(1, 3, 8, 8)
    found = [statistics_of(image) for image in (grey, colour, checks)]
    assert [round(float(s["half-tones"]), 3) for s in found] == [1, 1, 0]
    assert [round(float(s["colour"]), 3) for s in found] == [0, 1, 0]
    assert [round(float(s["contrast"]), 3) for s in found] == [0, 0, 0.5]
    assert [round(float(s["detail"]), 3) for s in found] == [0, 0, 0.5]


def test_adapt_says_it_as_a_note(tmp_path: Path, capsys):
    for i, image in enumerate(clouds(4)):
        place = tmp_path / "support" / "ab"[i // 2]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(place / f"{i}.png")
    words = ["adapt", START, "--support", str(tmp_path / "support"), "--out", str(tmp_path / "m")]
    assert main([*words, "--json"]) == 0
    told = capsys.readouterr()
    assert "note: the examples do not look like" in told.err
    assert json.loads(told.out)["notes"][0].startswith("the examples do not look like")
    assert main([*words[:3], str(tmp_path / "support"), "--ink", *words[4:]]) == 0
    assert "UserWarning" not in capsys.readouterr().err


def test_photographs_are_noticed_and_drawings_by_people_are_not():
    """As measured by benchmarks/familiarity.py, in tasks of each kind."""
    rows = json.loads((Path(__file__).parents[2] / "results" / "familiarity.json").read_text())
    for row in rows["rows"]:
        assert row["tasks"] >= 100
        share = row["noticed"] / row["tasks"]
        assert share >= 0.95 if row["data"] == "mini-imagenet" else share <= 0.05, row
