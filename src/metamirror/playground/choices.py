"""The starts that a page may choose from."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from metamirror.core.learner import Learner
from metamirror.estimators.inputs.images import Images, image_shape
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
"""Data sets of light ink on a dark ground: starts from these get the ink of an image alone."""


@dataclass(frozen=True)
class Choice:
    """A start on offer: its name in requests and for people, and its method in the registry.

    `reader.ink` says that it knows light ink on a dark ground, and not photographs.
    """

    key: str
    title: str
    method: str
    start: Start
    reader: Images
    ways: int
    steps: int
    lr: float

    def described(self) -> dict[str, Any]:
        """Return what the page is told."""
        method = METHODS[self.method]
        return {
            "key": self.key,
            "title": self.title,
            "optimizer": method.optimizer,
            "geometry": method.geometry,
            "style": style_of(self.method).index,
            "most_classes": min(self.ways, limits.MOST_CLASSES),
            "channels": self.reader.channels,
            "steps": min(max(self.steps, 1), limits.MOST_STEPS),
            "lr": self.lr,
        }


def on_offer(run: Path | None) -> dict[str, Choice]:
    """Return the shipped starts for images, and the user's own run if there is one."""
    shipped = {name: open_start(name) for name in shipped_names()}
    found = {
        name: _choice(name, "", name, learner, name.partition("-")[0])
        for name, learner in shipped.items()
        if image_shape(learner.model)
    }
    if run is not None:
        learner = open_start(run)
        # A folder of `metamirror.save` does not say what it was trained on.
        trained = (run / "config.json").is_file()
        data = load_config(run).data.partition(":")[0] if trained else None
        # The learner and not its path: what is downloaded later need not tell where it lay.
        found[OWN] = _choice(OWN, run.resolve().name, learner, learner, data)
    return found


def _choice(key: str, name: str, start: Start, learner: Learner, data: str | None) -> Choice:
    method = str((learner.config or {})["method"]).partition(":")[0]
    title = f"{name} ({METHODS[method].title})" if name else METHODS[method].title
    shape = image_shape(learner.model)
    if shape is None:
        raise ValueError(f"{title} takes no images: give the playground a run that does")
    channels, size = shape
    ways = learner.outputs(torch.zeros(1, channels, size, size))
    if ways < limits.FEWEST_CLASSES:
        raise ValueError(
            f"{title} tells {ways} classes apart: the playground needs {limits.FEWEST_CLASSES}"
        )
    reader = Images(channels, size, ink=channels == 1 and data in INK)
    return Choice(key, title, method, start, reader, ways, learner.steps, learner.lr)
