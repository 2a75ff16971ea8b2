"""A launcher from the words of a command line, such as local:jobs=2."""

from collections.abc import Callable
from dataclasses import dataclass

from metamirror.core.option_spec import read_options
from metamirror.experiments.comparison.launchers.launcher import Launcher
from metamirror.experiments.comparison.launchers.local import LocalLauncher
from metamirror.experiments.comparison.launchers.ray_cluster import RayLauncher, RayOptions
from metamirror.experiments.comparison.launchers.slurm import SlurmLauncher, SlurmOptions


@dataclass(frozen=True)
class LocalOptions:
    """The options of the local launcher."""

    jobs: int = 1  # runs at a time; they share the cores.


LAUNCHERS: dict[str, tuple[type, Callable[..., Launcher]]] = {
    "local": (LocalOptions, lambda options: LocalLauncher(options.jobs)),
    "ray": (RayOptions, RayLauncher),
    "slurm": (SlurmOptions, SlurmLauncher),
}
"""The options of each launcher, and what makes it from them."""


def open_launcher(words: str) -> Launcher:
    """Return the launcher that words such as `slurm:partition=gpu,time=08:00:00` ask for.

    Options are separated by commas: their values may hold colons.
    """
    name, _, rest = words.partition(":")
    if name not in LAUNCHERS:
        raise ValueError(f"launcher is {words!r}; choose from {', '.join(LAUNCHERS)}")
    given: dict[str, str] = {}
    for word in filter(None, rest.split(",")):
        option, equals, value = word.partition("=")
        if not (option and equals and value) or option in given:
            raise ValueError(f"launcher is {words!r}: {word!r} should read option=value, once")
        given[option] = value
    kind, make = LAUNCHERS[name]
    return make(read_options(name, kind, given))
