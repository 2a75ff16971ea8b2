"""Killed at any moment, a run ends as if nothing had happened."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

import metamirror as mm
from metamirror import tensor_file
from metamirror.cli import main
from runs import forks, results

KILLS = 20
RUN = (
    "train",
    *("--data", "glyphs", "--model", "conv4", "--width", "8", "--method", "mtnet"),
    *("--shots", "1", "--queries", "5", "--steps", "2", "--tasks-per-step", "2"),
    *("--validate-every", "20", "--val-tasks", "4"),
)
WRITES = ("fsync", "replace", "ftruncate", "write", "unlink", "mkdir")


def started(*words: str, kill_at: int | None = None):
    process = forks().Process(target=life, args=([*RUN, *words], kill_at))
    process.start()
    return process


def life(words: list[str], kill_at: int | None) -> None:
    """A process that runs a command, and kills itself before its n-th change to the disk."""
    left = [float("inf") if kill_at is None else kill_at]

    def counted(real):
        def call(*args, **kwargs):
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **kwargs)

        return call

    for name in WRITES:
        setattr(os, name, counted(getattr(os, name)))
    code = main(words)
    # Not sys.exit: the forked process has no more to clean up.
    os._exit(code)


def finished(process) -> int:
    process.join(timeout=120)
    return process.exitcode


def lines(run: Path) -> int:
    file = run / "metrics.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def assert_readable(run: Path) -> None:
    """No checkpoint is ever unreadable, and what was published can be loaded."""
    for file in [*run.glob("checkpoints/*.safetensors"), *run.glob("*/learner.safetensors")]:
        tensor_file.read(file)
    for which in ("best", "last"):
        if (run / which / "learner.json").exists():
            mm.load(run / which)


def test_twenty_kills_at_random_moments(tmp_path: Path):
    """Judged by bits. About 200 iterations, of which each life adds up to nine."""
    words = ("--iterations", "200", "--checkpoint-every", "3", "--log-every", "1")
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    undisturbed = started(*words, "--out", str(whole))
    choice = random.Random(0)
    for _ in range(KILLS):
        process = started(*words, "--out", str(killed), "--resume")
        before, more = lines(killed), choice.randrange(10)
        # The tail of metrics.jsonl that belongs to no checkpoint is cut off when a life begins.
        deadline = time.monotonic() + 60
        while lines(killed) < before + more - 3 and time.monotonic() < deadline:
            time.sleep(0.002)
        time.sleep(choice.uniform(0, 0.1))
        process.kill()
        assert finished(process) == -signal.SIGKILL
        assert_readable(killed)
    assert 0 < lines(killed) < 200
    assert finished(started(*words, "--out", str(killed), "--resume")) == 0
    assert finished(undisturbed) == 0
    assert results(killed) == results(whole)
    assert len(list((killed / "checkpoints").iterdir())) == 2
    assert not list(killed.rglob("*.tmp"))


@pytest.mark.parametrize("first", [0, 7])
def test_kills_before_every_change_to_the_disk(first: int, tmp_path: Path):
    words = ("--iterations", "3", "--checkpoint-every", "1", "--log-every", "1")
    words += ("--validate-every", "1")
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert finished(started(*words, "--out", str(whole))) == 0
    for kill_at in range(first, 100, 4):
        out = ("--out", str(killed), "--resume")
        code = finished(started(*words, *out, kill_at=kill_at))
        if killed.exists():
            assert_readable(killed)
        if code == 0:
            break
        assert code == -signal.SIGKILL
    assert code == 0
    assert results(killed) == results(whole)
    assert not list(killed.rglob("*.tmp"))
