"""Signs that are easy to tell apart, drawn at any place and size, and requests made of them."""

from __future__ import annotations

import base64
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

SHAPES = {
    "ring": [[(0.5 + 0.5 * math.sin(t), 0.5 - 0.5 * math.cos(t)) for t in np.linspace(0, 6.3, 25)]],
    "cross": [[(0, 0), (1, 1)], [(1, 0), (0, 1)]],
    "bar": [[(0.5, 0), (0.5, 1)]],
    "corner": [[(0.1, 0), (0.1, 1), (0.9, 1)]],
    "zigzag": [[(0, 1), (0.2, 0), (0.5, 0.9), (0.8, 0), (1, 1)]],
}


def draw(shape: str, seed: int = 0) -> dict[str, Any]:
    """The shape as a hand would draw it: somewhere, large or small, and a little shaky."""
    random = np.random.default_rng([seed, *shape.encode()])
    size = random.uniform(0.35, 0.85)
    corner = random.uniform(0.02, 0.98 - size, size=2)
    strokes = []
    for stroke in SHAPES[shape]:
        points = corner + size * (
            np.array(stroke) + random.normal(scale=0.015, size=(len(stroke), 2))
        )
        strokes.append(points.clip(0, 1).round(3).tolist())
    return {"strokes": strokes}


def pixels(values: NDArray[np.uint8]) -> dict[str, Any]:
    height, width, channels = values.shape
    content = base64.b64encode(values.tobytes()).decode()
    return {"width": width, "height": height, "channels": channels, "pixels": content}


def request(
    start: str = "glyphs-maml",
    steps: int = 5,
    lr: float | None = None,
    shapes: Any = tuple(SHAPES),
    shots: int = 1,
    seed: int = 0,
) -> dict[str, Any]:
    classes = [
        {"name": shape, "examples": [draw(shape, 100 * seed + k) for k in range(shots)]}
        for shape in shapes
    ]
    return {"start": start, "steps": steps, "lr": lr, "classes": classes}
