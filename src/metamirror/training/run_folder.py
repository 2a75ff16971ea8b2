"""A run folder: one process writes to it, and a run is not continued as another."""

import os
import platform
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch

from metamirror._version import __version__
from metamirror.console import warn
from metamirror.core.files import read_json, remove_leftovers, write_json
from metamirror.methods import find_method
from metamirror.storage import checkpoint
from metamirror.storage.locks import OWNER, locked
from metamirror.training.config import RunConfig, difference, load_config

FORMAT = 1
CONFIG, VERSIONS, LAUNCH, LOCK = "config.json", "versions.json", "launch.json", ".lock"
MAY_DIFFER = ("iterations", "checkpoint_every", "on_nonfinite", "on_collapse", "imports")
"""Settings that may change when a run is continued: they decide nothing that has been computed."""


@contextmanager
def locked_run(
    folder: Path, config: RunConfig, resume: bool, *, ranks: int = 1, data: str = ""
) -> Iterator[None]:
    """Lock a run folder for this process, and check that it is the run that is meant."""
    resume = resume or restarted(folder)
    _check_use(folder, resume)
    folder.mkdir(parents=True, exist_ok=True)
    now = {**versions(), "ranks": ranks, "data": data}
    with locked(folder, LOCK):
        _check_use(folder, resume)
        for part in (folder, folder / checkpoint.FOLDER, folder / "best", folder / "last"):
            remove_leftovers(part)
        if (folder / CONFIG).exists():
            _check_same(folder, config, now)
        write_json(folder / LAUNCH, {"launch": launch()})
        # What it was started with stays on record, whatever continues it.
        if not (folder / VERSIONS).exists():
            write_json(folder / VERSIONS, now)
        write_json(folder / CONFIG, asdict(config))
        yield


def versions() -> dict[str, object]:
    """Return what a run is made with."""
    return {
        "format": FORMAT,
        "metamirror": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "threads": torch.get_num_threads(),
    }


def _check_use(folder: Path, resume: bool) -> None:
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file: choose another folder with --out")
    # What a process leaves that was killed before it wrote its configuration counts for nothing.
    inside = [p for p in folder.glob("*") if p.name not in (OWNER, LOCK, VERSIONS, LAUNCH)]
    if not [p for p in inside if p.suffix != ".tmp"]:
        return
    if not (folder / CONFIG).exists():
        raise ValueError(f"{folder} is not empty and holds no run: choose another folder")
    if not resume:
        raise ValueError(
            f"{folder} is not empty: continue its run with --resume, choose another folder, or "
            f"remove it"
        )


def _check_same(folder: Path, config: RunConfig, now: dict[str, object]) -> None:
    """Refuse to continue one run as another."""
    before = recorded(folder)
    if before.get("format", FORMAT) != FORMAT:
        raise ValueError(
            f"{folder} is a run of format {before['format']}, and this version of metamirror "
            f"({__version__}) continues format {FORMAT}: use metamirror {before.get('metamirror')}"
        )
    stored = load_config(folder)
    if not checkpoint.files(folder):
        checkpoint.check_unbegun(folder)
    check_settings(folder, config, stored)
    if before.get("data", now["data"]) != now["data"]:
        raise ValueError(
            f"{config.data} is not what it was when {folder} was started: images or classes have "
            f"changed; start a new run in another folder"
        )
    if find_method(config.method)[0].anneals and config.iterations != stored.iterations:
        warn(
            f"{config.method} anneals over the run, which was {stored.iterations} iterations long: "
            f"it will differ from one of {config.iterations} from the start"
        )
    for name in sorted(set(now) & set(before) - {"data"}):
        if now[name] != before[name]:
            warn(
                f"{folder} was made with {name} {before[name]}, and this is {now[name]}: the rest "
                f"may differ in rounding from an undisturbed run"
            )


def check_settings(folder: Path, config: RunConfig, stored: RunConfig) -> None:
    """Refuse to continue a run with settings other than those it was started with."""
    for key in difference(config, stored):
        ours, theirs = getattr(config, key), getattr(stored, key)
        if key not in MAY_DIFFER:
            raise ValueError(
                f"{folder} was started with {key} {theirs}, not {ours}: leave that out to "
                f"continue it, or choose another folder with --out"
            )
        if key == "iterations" and (config.schedule == "cosine" or ours < theirs):
            rule = "can only grow" if ours < theirs else "decides the cosine schedule"
            raise ValueError(
                f"{folder} was started with {theirs} iterations, not {ours}, which {rule}"
            )


def recorded(folder: Path) -> dict[str, object]:
    """Return what a run was started with; nothing if that was not written or is gone."""
    found = read_json(folder / VERSIONS) if (folder / VERSIONS).is_file() else {}
    if not isinstance(found, dict):
        raise ValueError(f"{folder / VERSIONS} holds no versions: remove it")
    return found


def launch() -> str | None:
    """Return which torchrun has started this process: the same for all that it starts again."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return None
    return f"{os.environ['TORCHELASTIC_RUN_ID']} {socket.gethostname()} {os.getppid()}"


def restarted(folder: Path) -> bool:
    """Return whether this process replaces one that the same torchrun started, and that died."""
    if int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) == 0:
        return False
    try:
        return bool(read_json(folder / LAUNCH)["launch"] == launch())
    except (ValueError, KeyError, TypeError):
        return False
