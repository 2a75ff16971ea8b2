"""Colours that everyone can tell apart, and see."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from matplotlib.markers import MarkerStyle

import metamirror as mm
from metamirror.report.styles import CHOSEN, MARKERS, SOLID, Style, style_of, styles_of

# Full dichromacy, on linear RGB: Machado, Oliveira and Fernandes (2009).
EYES = {
    "all cones": np.eye(3),
    "no red cones": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "no green cones": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "no blue cones": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}
LUMINANCE = np.array([0.2126, 0.7152, 0.0722])
GROUNDS = ("#ffffff", "#15181d")


def linear(colour: str) -> np.ndarray:
    rgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], LUMINANCE, [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ rgb.clip(0, 1) / np.array([0.9505, 1, 1.089])
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("ground", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("eyes", EYES)
def test_any_two_methods_differ_to_any_eye(eyes: str, ground: int):
    seen = [lab(EYES[eyes] @ linear(pair[ground])) for pair in CHOSEN]
    assert closest(seen[:SOLID]) > 18
    assert closest(seen) > (17 if eyes == "all cones" else 10)


def closest(colours: list[np.ndarray]) -> float:
    return min(float(np.linalg.norm(a - b)) for a, b in combinations(colours, 2))


@pytest.mark.parametrize("ground", [0, 1], ids=["light", "dark"])
def test_every_line_stands_out_from_its_ground(ground: int):
    below = LUMINANCE @ linear(GROUNDS[ground])
    for index in range(40):
        own = LUMINANCE @ linear(Style(index).colours[ground])
        assert (max(own, below) + 0.05) / (min(own, below) + 0.05) > 2.8


def looks(styles: list[Style]) -> set[tuple]:
    return {(style.colours, style.marker, style.dashes) for style in styles}


def test_forty_methods_have_forty_looks_and_colours():
    names = [f"method{i}" for i in range(40)]
    styles = styles_of(names)
    assert len(looks(styles)) == len({style.colours for style in styles}) == 40
    assert len({style.marker for style in styles}) == 40
    assert [style_of(name) for name in reversed(names)] == styles[::-1]


def test_two_dozen_methods_have_a_chosen_colour_and_a_filled_marker():
    assert len(CHOSEN) == 24
    assert len(set(MARKERS)) == 23
    for index in range(40):
        marker = MarkerStyle(Style(index).marker)
        assert marker.is_filled(), f"{index} is drawn in the colour of the page"


def test_colours_that_may_look_alike_have_other_lines():
    lines = [Style(index).dashes for index in range(30)]
    assert lines[:SOLID] == [()] * SOLID
    assert len({lines[0], lines[10], lines[20]}) == 3
    assert lines[10] == lines[19]


def test_registered_methods_have_the_first_looks_and_a_variant_has_its_method_s():
    assert [style_of(method).index for method in mm.METHODS] == list(range(len(mm.METHODS)))
    for variant in ("blockiaf:variant=released", "blockiaf-1shot"):
        assert style_of(variant) == style_of("blockiaf")


def test_curves_of_one_method_differ_in_their_dashes_alone():
    styles = styles_of(["maml"] * 40)
    assert len({style.colours for style in styles}) == 1
    assert len(looks(styles)) == 40
