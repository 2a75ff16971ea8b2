"""A run folder: who may write to it, whether it is the run that was meant, what stands in it."""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from filelock import FileLock, Timeout

from metamirror._version import __version__
from metamirror.console import warn
from metamirror.storage import checkpoint
from metamirror.storage.atomic import read_json, remove_leftovers, write_json
from metamirror.training.config import RunConfig, difference, load_config

FORMAT = 1
CONFIG, VERSIONS, OWNER, LOCK = "config.json", "versions.json", "owner.json", ".lock"
LAUNCH = "launch.json"
MAY_DIFFER = ("iterations", "checkpoint_every", "on_nonfinite")
"""What may change when a run is continued, since it decides nothing that has been computed."""


@contextmanager
def claimed(
    folder: Path, config: RunConfig, *, resume: bool, ranks: int = 1, data: str = ""
) -> Iterator[None]:
    """The folder, ready to be written to by this process alone.

    A process that is killed leaves no claim behind: the lock is the system's, not a file's.

    Args:
        folder: of the run.
        config: of the run.
        resume: whether a run that stands there is meant.
        ranks: how many processes compute it.
        data: the identity of what it learns from.
    """
    resume = resume or restarted(folder)
    _check_use(folder, resume)
    folder.mkdir(parents=True, exist_ok=True)
    now = {**versions(), "ranks": ranks, "data": data}
    with held(folder, LOCK):
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


@contextmanager
def held(folder: Path, lock: str) -> Iterator[None]:
    """A folder for one process at a time; a second one is refused, with the first one's number.

    The lock is the system's, not a file's: a process that is killed holds nothing.

    Args:
        folder: that is there.
        lock: the name of the file that is locked.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(FileLock(folder / lock, timeout=0))
        except Timeout as error:
            raise ValueError(
                f"{folder} is in use by {_owner(folder)}: let it end, or stop it"
            ) from error
        stack.callback((folder / OWNER).unlink, missing_ok=True)
        write_json(folder / OWNER, {"pid": os.getpid(), "host": socket.gethostname()})
        yield


def versions() -> dict[str, object]:
    """What a run was made with."""
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
    """Refuses to continue one run as another."""
    before = recorded(folder)
    if before.get("format", FORMAT) != FORMAT:
        raise ValueError(
            f"{folder} is a run of format {before['format']}, and this version of metamirror "
            f"({__version__}) continues format {FORMAT}: use metamirror {before.get('metamirror')}"
        )
    stored = load_config(folder)
    if not checkpoint.files(folder):
        checkpoint.check_unbegun(folder)
    for key in difference(config, stored):
        ours, theirs = getattr(config, key), getattr(stored, key)
        if key not in MAY_DIFFER:
            raise ValueError(
                f"{folder} was started with {key} {theirs}, not {ours}: leave that out to "
                f"continue it, or choose another folder"
            )
        if key == "iterations" and (config.schedule == "cosine" or ours < theirs):
            rule = "can only grow" if ours < theirs else "decides the cosine schedule"
            raise ValueError(
                f"{folder} was started with {theirs} iterations, not {ours}, which {rule}"
            )
    if data_changed(before, now["data"]):
        raise ValueError(
            f"{config.data} is not what it was when {folder} was started: pictures or classes have "
            f"changed; start a new run in another folder"
        )
    for name in sorted(set(now) & set(before) - {"data"}):
        if now[name] != before[name]:
            warn(
                f"{folder} was made with {name} {before[name]}, and this is {now[name]}: the rest "
                f"may differ in rounding from an undisturbed run"
            )


def recorded(folder: Path) -> dict[str, object]:
    """What a run was started with; nothing, if that was not written or is gone."""
    found = read_json(folder / VERSIONS) if (folder / VERSIONS).is_file() else {}
    if not isinstance(found, dict):
        raise ValueError(f"{folder / VERSIONS} holds no versions: remove it")
    return found


def launch() -> str | None:
    """Which torchrun has started this process: the same for all that it starts again."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return None
    return f"{os.environ['TORCHELASTIC_RUN_ID']} {socket.gethostname()} {os.getppid()}"


def restarted(folder: Path) -> bool:
    """Whether this process goes on for one that the same torchrun started, and that died."""
    if int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) == 0:
        return False
    try:
        return bool(read_json(folder / LAUNCH)["launch"] == launch())
    except (ValueError, KeyError, TypeError):
        return False


def data_changed(before: Mapping[str, object], data: object) -> bool:
    """Whether a run's data are others than those it was started with."""
    return before.get("data", data) != data


def _owner(folder: Path) -> str:
    try:
        owner = read_json(folder / OWNER)
        return f"process {owner['pid']} on {owner['host']}"
    except (ValueError, KeyError, TypeError):
        return "another process"
