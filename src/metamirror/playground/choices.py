"""The starts that a page may choose from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from metamirror.core.learner import Learner
from metamirror.estimators.inputs.reader import image_shape
from metamirror.estimators.starts import Start, open_start, shipped_names
from metamirror.methods import METHODS
from metamirror.playground import limits
from metamirror.report.styles import style_of
from metamirror.training.config import load_config

PLAIN = "glyphs-maml"
"""Gradient descent, beside which every geometry is shown."""
FIRST = "glyphs-blockiaf"
"""What the page begins with."""
OWN = "run"
"""What requests call the user's own run: a word, and not its path."""
INK = ("glyphs", "omniglot")
"""Data sets of light ink on a dark ground: starts from these get the ink of a picture alone."""


@dataclass(frozen=True)
class Choice:
    """A start on offer.

    Attributes:
        key: what requests call it.
        title: what people call it.
        method: its key in the registry.
        start: what the estimator takes.
        ways: classes that it can tell apart.
        channels: of its pictures.
        size: height and width of its pictures.
        ink: whether it knows light ink on a dark ground, and not photographs.
        steps: K in its training.
        lr: alpha in its training.
    """

    key: str
    title: str
    method: str
    start: Start
    ways: int
    channels: int
    size: int
    ink: bool
    steps: int
    lr: float

    def described(self) -> dict[str, Any]:
        """What the page is told."""
        method = METHODS[self.method]
        return {
            "key": self.key,
            "title": self.title,
            "optimizer": method.optimizer,
            "geometry": method.geometry,
            "style": style_of(self.method).index,
            "most_classes": min(self.ways, limits.MOST_CLASSES),
            "channels": self.channels,
            "steps": min(max(self.steps, 1), limits.MOST_STEPS),
            "lr": self.lr,
        }


def on_offer(run: Path | None) -> dict[str, Choice]:
    """The shipped starts for pictures, and the user's own run if there is one."""
    found = {}
    for name in shipped_names():
        learner = open_start(name)
        if image_shape(learner.model) is not None:
            data = name.partition("-")[0]
            found[name] = _choice(name, METHODS[_method(learner)].title, name, learner, data)
    if run is not None:
        learner = open_start(run)
        title = f"{run.resolve().name} ({METHODS[_method(learner)].title})"
        # The learner and not its path: what is downloaded later need not tell where it lay.
        found[OWN] = _choice(OWN, title, learner, learner, _data_of(run))
    return found


def _choice(key: str, title: str, start: Start, learner: Learner, data: str | None) -> Choice:
    shape = image_shape(learner.model)
    if shape is None:
        raise ValueError(f"{title} takes no pictures: give the playground a run that does")
    channels, size = shape
    ways = learner.outputs(torch.zeros(1, channels, size, size))
    if ways < limits.FEWEST_CLASSES:
        raise ValueError(
            f"{title} tells {ways} classes apart: the playground needs {limits.FEWEST_CLASSES}"
        )
    return Choice(
        key=key,
        title=title,
        method=_method(learner),
        start=start,
        ways=ways,
        channels=channels,
        size=size,
        ink=channels == 1 and data in INK,
        steps=learner.steps,
        lr=learner.lr,
    )


def _data_of(run: Path) -> str | None:
    """What a run was trained on; a folder of `metamirror.save` does not tell."""
    if not (run / "config.json").is_file():
        return None
    return load_config(run).data.partition(":")[0]


def _method(learner: Learner) -> str:
    config = learner.config or {}
    return str(config["method"]).partition(":")[0]
