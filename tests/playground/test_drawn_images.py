"""What a start gets to see of a drawing: the sign, and not how it was drawn."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image, ImageDraw

from metamirror.estimators.inputs.images import Images
from metamirror.playground.images import LETTER, PEN, Strokes, prepare
from tests.playground.drawings import SHAPES


def strokes(shape: str, size: float = 0.8, left: float = 0.1, top: float = 0.1) -> Strokes:
    return [np.float32([left, top]) + np.float32(size) * np.float32(s) for s in SHAPES[shape]]


def photograph(shape: str, paper: int, ink: int, size: int = 60, at: tuple[int, int] = (20, 30)):
    image = Image.new("L", (112, 112), paper)
    canvas = ImageDraw.Draw(image)
    for stroke in SHAPES[shape]:
        canvas.line([(at[0] + size * x, at[1] + size * y) for x, y in stroke], ink, 6)
    return np.asarray(image)[..., None]


def box(image) -> tuple[int, int, int, int]:
    rows, columns = (np.flatnonzero(image[..., 0].max(axis) > 100) for axis in (1, 0))
    return rows[0], rows[-1], columns[0], columns[-1]


@pytest.mark.parametrize("shape", SHAPES)
def test_neither_place_nor_size_of_a_drawing_matter(shape):
    large = prepare(strokes(shape), Images(1, 28, ink=True)).astype(int)
    small = prepare(strokes(shape, size=0.3, left=0.65, top=0.02), Images(1, 28, ink=True)).astype(
        int
    )
    assert np.abs(large - small).max() <= 2


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("size", [28, 84])
def test_a_drawing_is_as_large_as_a_letter_and_in_the_middle(shape, size):
    for image in (
        prepare(strokes(shape), Images(1, size, ink=True)),
        prepare(photograph(shape, 230, 20), Images(1, size, ink=True)),
    ):
        top, bottom, left, right = box(image)
        longer = max(bottom - top, right - left) + 1
        assert abs(longer - LETTER * size) <= size / 28 + 1
        assert abs((top + bottom) - (size - 1)) <= size / 14
        assert abs((left + right) - (size - 1)) <= size / 14


def test_a_stroke_is_as_thick_as_those_of_letters():
    across = prepare(strokes("bar"), Images(1, 28, ink=True))[14, :, 0].sum() / 255
    assert abs(across - 28 * PEN) < 0.5


@pytest.mark.parametrize("shape", SHAPES)
def test_dark_on_light_is_light_on_dark(shape):
    light = prepare(photograph(shape, 255, 0), Images(1, 28, ink=True))
    dark = prepare(photograph(shape, 10, 200), Images(1, 28, ink=True))
    assert np.abs(light.astype(int) - dark).max() <= 1
    assert light[0].max() == 0
    assert light.max() == 255


def test_a_shadow_on_the_paper_is_not_ink():
    clean = photograph("corner", 240, 30)
    shadow = (clean * np.linspace(1, 0.85, 112)[None, :, None]).astype(np.uint8)
    seen = prepare(shadow, Images(1, 28, ink=True)).astype(int)
    assert np.abs(seen - prepare(clean, Images(1, 28, ink=True))).mean() < 4


def test_a_photograph_and_a_drawing_of_one_sign_look_alike():
    drawn = prepare(strokes("cross"), Images(1, 28, ink=True)).astype(int)
    taken = prepare(photograph("cross", 250, 40), Images(1, 28, ink=True)).astype(int)
    other = prepare(photograph("ring", 250, 40), Images(1, 28, ink=True)).astype(int)
    assert np.abs(drawn - taken).mean() < np.abs(drawn - other).mean() / 2


def test_a_dot_stays_small():
    dot = prepare([np.float32([[0.8, 0.8]])], Images(1, 28, ink=True))
    assert 0 < (dot > 100).sum() < 20
    paper = np.full((112, 112, 1), 255, np.uint8)
    paper[50:54, 80:84] = 0
    assert 0 < (prepare(paper, Images(1, 28, ink=True)) > 100).sum() < 40


def test_what_shows_nothing_is_refused():
    noise = np.random.default_rng(0).integers(200, 215, (50, 50, 1), dtype=np.uint8)
    with pytest.raises(ValueError, match="blank"):
        prepare(noise, Images(1, 28, ink=True))


def test_colours_are_kept_for_a_start_that_knows_them():
    photo = np.random.default_rng(0).integers(0, 255, (96, 64, 3), dtype=np.uint8)
    assert prepare(photo, Images(3, 32)).shape == (32, 32, 3)
    drawn = prepare(strokes("ring"), Images(3, 32))
    assert drawn.shape == (32, 32, 3)
    assert drawn[0].min() == 255, "a drawing lies on white paper"


def test_a_grey_start_that_knows_photographs_gets_them_as_they_are():
    photo = np.random.default_rng(0).integers(0, 255, (32, 32, 1), dtype=np.uint8)
    np.testing.assert_array_equal(prepare(photo, Images(1, 32)), photo)
    blank = np.full((20, 30, 3), 128, np.uint8)
    assert prepare(blank, Images(1, 32)).shape == (32, 32, 1)
    drawn = prepare(strokes("ring"), Images(1, 32))
    assert (drawn.shape, drawn[0].min()) == ((32, 32, 1), 255)


@pytest.mark.parametrize("shape", [(8, 8, 1), (8, 128, 3), (128, 9, 1), (112, 112, 3)])
def test_any_shape_of_image_is_taken(shape):
    values = np.zeros(shape, np.uint8)
    values[2:5, 2:5] = 255
    assert prepare(values, Images(1, 28, ink=True)).shape == (28, 28, 1)


def test_ink_at_the_very_border_is_taken():
    values = np.zeros((30, 30, 1), np.uint8)
    values[:, 0] = 255
    assert prepare(values, Images(1, 28, ink=True)).max() == 255
