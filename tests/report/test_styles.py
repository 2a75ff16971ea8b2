"""Colours that everyone can tell apart, and see."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from metamirror.report.styles import PALETTE

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
    seen = [lab(EYES[eyes] @ linear(pair[ground])) for pair in PALETTE]
    assert min(float(np.linalg.norm(a - b)) for a, b in combinations(seen, 2)) > 18


@pytest.mark.parametrize("ground", [0, 1], ids=["light", "dark"])
def test_every_line_stands_out_from_its_ground(ground: int):
    below = LUMINANCE @ linear(GROUNDS[ground])
    for pair in PALETTE:
        own = LUMINANCE @ linear(pair[ground])
        assert (max(own, below) + 0.05) / (min(own, below) + 0.05) > 2.8
