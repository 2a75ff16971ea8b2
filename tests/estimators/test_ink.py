"""Drawings on paper of any kind, as a start for letters knows them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw

import metamirror as mm
from metamirror.cli.main import main
from metamirror.estimators.export import describe
from metamirror.estimators.inputs.ink import LONGEST, drawn_on

SIGNS = {
    "bar": [(0.5, 0.0), (0.5, 1.0)],
    "corner": [(0.0, 0.0), (0.0, 1.0), (1.0, 1.0)],
    "zigzag": [(0.0, 1.0), (0.3, 0.0), (0.6, 1.0), (1.0, 0.0)],
}


def drawn(
    sign: str, paper: int = 235, ink: int = 30, at: tuple[int, int] = (20, 15), side: int = 60
) -> Image.Image:
    """A sign somewhere on a sheet of 160 x 120."""
    sheet = Image.new("L", (160, 120), paper)
    ImageDraw.Draw(sheet).line(
        [(at[0] + side * x, at[1] + side * y) for x, y in SIGNS[sign]], ink, 5
    )
    return sheet


OTHERWISE = [{"paper": 10, "ink": 220}, {"at": (80, 40)}, {"side": 90, "at": (40, 10)}]


@pytest.fixture(scope="module")
def clf() -> mm.FewShotClassifier:
    return mm.FewShotClassifier("glyphs-maml", ink=True).fit(
        [drawn(sign) for sign in SIGNS], list(SIGNS)
    )


@pytest.mark.parametrize("how", OTHERWISE, ids=str)
def test_neither_paper_nor_place_nor_size_decide(clf: mm.FewShotClassifier, how: dict):
    assert clf.predict([drawn(sign, **how) for sign in SIGNS]).tolist() == list(SIGNS)


def test_an_image_is_the_same_in_every_form(clf: mm.FewShotClassifier, tmp_path: Path):
    image = drawn("corner")
    image.save(tmp_path / "corner.png")
    array = np.asarray(image)
    forms = [[image], [tmp_path / "corner.png"], array[None], array[None] / 255, [array]]
    forms += [np.repeat(array[None, ..., None], 3, 3), [image.convert("RGBA")]]
    expected = clf.predict_proba(forms[0])
    for form in forms[1:]:
        np.testing.assert_array_equal(clf.predict_proba(form), expected)


def test_large_photographs_look_like_small_ones():
    small = drawn_on(np.asarray(drawn("zigzag"))[..., None], 28).astype(int)
    large = np.asarray(drawn("zigzag").resize((3200, 2400), Image.Resampling.BICUBIC))[..., None]
    assert max(large.shape) > LONGEST
    assert np.abs(drawn_on(large, 28) - small).mean() < 6


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 5000, 3), (5000, 2, 1)])
def test_what_shows_nothing_is_named(clf: mm.FewShotClassifier, shape: tuple[int, ...]):
    with pytest.raises(ValueError, match=r"X\[1\] is blank: nothing in it differs"):
        clf.predict([drawn("bar"), np.zeros(shape, np.uint8)])


def test_it_is_kept_with_the_model(clf: mm.FewShotClassifier, tmp_path: Path, capsys):
    clf.save(tmp_path / "model")
    again = mm.FewShotClassifier.load(tmp_path / "model")
    assert again.ink
    photo = drawn("zigzag", paper=90, ink=250, at=(90, 50))
    np.testing.assert_array_equal(again.predict_proba([photo]), clf.predict_proba([photo]))
    again.partial_fit([photo], ["zigzag"])
    assert len(again.support_.x) == 4
    assert "light on dark" in describe(again.fitted_)["preprocessing"]
    photo.save(tmp_path / "photo.png")
    assert main(["predict", str(tmp_path / "model"), str(tmp_path / "photo.png"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["predictions"][0]
    assert found["probabilities"] == clf.predict_proba([photo])[0].tolist()


def test_a_command_away(tmp_path: Path, capsys):
    for sign in SIGNS:
        (tmp_path / "support" / sign).mkdir(parents=True)
        drawn(sign).save(tmp_path / "support" / sign / "0.png")
        drawn(sign, paper=200, ink=60, at=(70, 30)).save(tmp_path / f"{sign}.png")
    words = ["adapt", "glyphs-maml", "--support", str(tmp_path / "support"), "--ink"]
    assert main([*words, "--out", str(tmp_path / "model")]) == 0
    assert "note" not in capsys.readouterr().err
    images = [str(tmp_path / f"{sign}.png") for sign in SIGNS]
    assert main(["predict", str(tmp_path / "model"), *images]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(": ")[1].split()[0] for line in lines] == list(SIGNS)


def test_a_start_for_colours_has_no_use_for_it():
    model = mm.models.Conv4(ways=3, channels=3, image_size=32, width=4)
    clf = mm.FewShotClassifier(mm.make_learner("maml", model), ink=True)
    with pytest.raises(ValueError, match="ink is for starts that take grey images"):
        clf.fit([drawn("bar"), drawn("corner")], [0, 1])
