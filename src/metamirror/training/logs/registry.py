"""The trackers by name, from the words of a command line."""

import importlib

from metamirror.console import warn
from metamirror.core.extras import is_installed
from metamirror.training.logs.log import Log, Opening

TRACKERS = {
    "tensorboard": ("tensorboard", "tensorboard"),
    "mlflow": ("mlflow", "mlflow"),
    "wandb": ("wandb", "wandb"),
    "csv": (None, ""),
}
"""The package that each needs and the extra that brings it; its module here has the same name."""


def read_trackers(words: str) -> tuple[str, ...]:
    """Return trackers from a list such as `tensorboard,csv`; refuse one that is not installed."""
    names = tuple(filter(None, (word.strip() for word in words.split(","))))
    for name in names:
        if name not in TRACKERS or names.count(name) > 1:
            raise ValueError(f"log is {words!r}; choose from {', '.join(TRACKERS)}, each once")
        package, extra = TRACKERS[name]
        if package is not None and not is_installed(package):
            raise ValueError(f"{package} is not installed: pip install 'metamirror[{extra}]'")
    return names


def open_trackers(words: str, opening: Opening) -> dict[str, Log]:
    """Return the trackers that are asked for, by name, without those that cannot be opened."""
    found: dict[str, Log] = {}
    for name in read_trackers(words):
        try:
            module = importlib.import_module(f"metamirror.training.logs.to_{name}")
            found[name] = module.Tracker(opening)
        except Exception as error:  # whatever a tracker raises
            warn(f"{name} gets nothing of this run, which goes on: {' '.join(str(error).split())}")
    return found
