"""Where an adaptation starts: a learner that ships with the package, one on disk, or an object."""

import copy
import math
import os
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from metamirror.core.learner import Learner
from metamirror.methods import make_learner
from metamirror.models.linear import UNIT, Linear
from metamirror.storage import learner_file

SHIPPED = Path(__file__).parents[1] / "starts"
"""One folder for each: what `metamirror.save` wrote, and start.json, which says how it was made."""

BACKBONE = "backbone"
"""The folder inside a start that holds the frozen network to whose features it adapts."""

Start = str | os.PathLike[str] | Learner | None

_load_once = cache(learner_file.load)


def shipped_names() -> list[str]:
    """Return the names of the starts that come with the package.

    >>> "glyphs-blockiaf" in shipped_names()
    True
    """
    return sorted(folder.parent.name for folder in SHIPPED.glob(f"*/{learner_file.CONFIG}"))


def ridge_start(x: Tensor, directions: bool) -> Learner:
    """Return a start for rows of numbers that has learned nothing from other tasks.

    Ridge regression in closed form, from which no step is taken: on the directions of the rows, or
    on numbers that have mean 0 and variance 1 over these examples.
    """
    model = Linear(x.shape[1], 1, normalise=directions)
    if directions:
        # A direction has no scale, but single precision has one. A power of two changes no digit.
        largest = float(x.abs().max())
        model.weights.data.fill_(2.0 ** -min(max(math.frexp(largest)[1], -120), 120))
    else:
        spread = x.std(0, correction=0)
        model.centre.data = x.mean(0).to(model.centre)
        model.weights.data = torch.where(spread > 0, spread, 1).mul(UNIT**0.5).reciprocal().float()
    return make_learner("maml", model, start="ridge", steps=0)


def backbone_of(start: Start) -> Path | None:
    """Return the folder of the frozen network on whose features a start was trained, if any."""
    if not isinstance(start, str | os.PathLike):
        return None
    folder = (SHIPPED / start if start in shipped_names() else Path(start)) / BACKBONE
    return folder if folder.is_dir() else None


def open_start(start: Start) -> Learner:
    """Return a copy of a start that normalises by the support set, in evaluation mode.

    A shipped start's name goes before a folder that is called the same: write ./NAME for that.
    """
    # A network is built with random numbers, which those of the user's program must not notice.
    with torch.random.fork_rng(devices=[]):
        if isinstance(start, Learner):
            learner = copy.deepcopy(start)
        elif isinstance(start, str) and start in shipped_names():
            learner = copy.deepcopy(_load_once(SHIPPED / start))
        elif isinstance(start, str | os.PathLike) and Path(start).is_dir():
            learner = learner_file.load(Path(start))
        else:
            raise ValueError(
                f"start is {str(start)!r}; give a shipped start ({', '.join(shipped_names())}), "
                f"the folder of a run or of metamirror.save, or a metamirror.Learner"
            )
    learner.configure(norm="inductive")
    return learner.eval()
