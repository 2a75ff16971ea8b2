"""Commands that are killed (SIGKILL) at random moments, or just before they change the disk."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import metamirror as mm
from metamirror.cli.main import main
from metamirror.data.store import Store
from metamirror.storage import tensor_file
from tests.data import sources
from tests.runs import forks, results

TRAIN = (
    "train",
    *("--data", "glyphs", "--model", "conv4", "--width", "8", "--method", "mtnet"),
    *("--shots", "1", "--queries", "5", "--steps", "2", "--tasks-per-step", "2"),
    *("--val-tasks", "4", "--log-every", "1"),
)
COMPARE = (
    *(
        "compare",
        "--data",
        "sinusoid",
        "--methods",
        "maml,metasgd",
        "--no-controls",
        "--seeds",
        "2",
    ),
    *("--shots", "3", "--queries", "3", "--steps", "2", "--width", "8", "--tasks-per-step", "2"),
    *(
        "--iterations",
        "60",
        "--checkpoint-every",
        "5",
        "--log-every",
        "4",
        "--validate-every",
        "30",
    ),
    *("--val-tasks", "3", "--test-tasks", "6", "--vectorize", "False"),
)
CHANGES = ("fsync", "replace", "ftruncate", "write", "unlink", "mkdir")


def started(*words: str, kill_at: int | None = None) -> Any:
    process = forks().Process(target=_life, args=(words, kill_at))
    process.start()
    return process


def _life(words: tuple[str, ...], kill_at: int | None) -> None:
    """A process that runs a command, and kills itself before its n-th change to the disk."""
    left = [float("inf") if kill_at is None else kill_at]

    def counted(real: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **kwargs)

        return call

    for name in CHANGES:
        setattr(os, name, counted(getattr(os, name)))
    # Not sys.exit: the forked process has no more to clean up.
    os._exit(main(words))


def ended(process: Any) -> int:
    process.join(timeout=240)
    return process.exitcode


def killed(process: Any) -> None:
    process.kill()
    assert ended(process) == -signal.SIGKILL


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


def kill_training(folder: Path, kills: int, seed: int = 0) -> dict[str, Any]:
    """Judged by bits. Each life adds up to nine iterations."""
    words = (*TRAIN, "--iterations", str(10 * kills), "--checkpoint-every", "3")
    words += ("--validate-every", "20")
    whole, run = folder / "whole", folder / "killed"
    undisturbed = started(*words, "--out", str(whole))
    choice = random.Random(seed)
    for _ in range(kills):
        process = started(*words, "--out", str(run), "--resume")
        before, more = lines(run), choice.randrange(10)
        # The tail of metrics.jsonl that belongs to no checkpoint is cut off when a life begins.
        deadline = time.monotonic() + 200
        while lines(run) < before + more - 3 and time.monotonic() < deadline:
            time.sleep(0.002)
        time.sleep(choice.uniform(0, 0.1))
        killed(process)
        assert_readable(run)
    assert 0 < lines(run) < 10 * kills
    assert ended(started(*words, "--out", str(run), "--resume")) == 0
    assert ended(undisturbed) == 0
    assert results(run) == results(whole)
    assert len(list((run / "checkpoints").iterdir())) == 2
    assert not list(run.rglob("*.tmp"))
    return {"kills": kills}


def kill_checkpointing(folder: Path, first: int, stride: int = 4) -> dict[str, Any]:
    """Before every `stride`-th change to the disk, of a run that does little but checkpoints."""
    words = (*TRAIN, "--iterations", "3", "--checkpoint-every", "1", "--validate-every", "1")
    whole, run = folder / "whole", folder / "killed"
    assert ended(started(*words, "--out", str(whole))) == 0
    kills = 0
    for kill_at in range(first, 200, stride):
        code = ended(started(*words, "--out", str(run), "--resume", kill_at=kill_at))
        if run.exists():
            assert_readable(run)
        if code == 0:
            break
        assert code == -signal.SIGKILL
        kills += 1
    assert code == 0
    assert results(run) == results(whole)
    assert not list(run.rglob("*.tmp"))
    return {"kills": kills}


def kill_adding(folder: Path, late: int) -> dict[str, Any]:
    """Later and later in one `data add`, until some kills fall after the moment of change.

    What was installed before stays whole until then, and is the new set from then on.
    """
    files = sources.folders()
    old = sources.write(folder / "old", files)
    files |= {f"train/n9999/{i}.png": sources.picture(i % 256, 300) for i in range(80)}
    new = sources.write(folder / "new", files)
    home = folder / "home"

    def add(source: Path, home: Path) -> Any:
        words = ("data", "add", "mini-imagenet", "--from", str(source), "--data-dir", str(home))
        return started(*words)

    def finish(source: Path, home: Path) -> str:
        assert ended(add(source, home)) == 0
        return found(home)

    def found(home: Path) -> str:
        return str(Store(home).check("mini-imagenet")["sha256"])

    before = finish(old, home)
    begun = time.monotonic()
    after = finish(new, folder / "undisturbed")
    duration = time.monotonic() - begun
    kills = killed_late = 0
    while killed_late < late:
        process = add(new, home)
        time.sleep(duration * kills / 40)
        process.kill()
        ended(process)
        kills += 1
        assert found(home) in (before, after)
        if found(home) == after:
            killed_late += 1
            assert finish(old, home) == before, "back to the old state, for the next kill"
    assert kills > killed_late, "kills fell before it, too"
    assert finish(new, home) == after
    assert not list(home.glob("*.part"))
    return {"kills": kills, "after_the_change": killed_late}


def kill_comparing(folder: Path, kills: int, seed: int = 0) -> dict[str, Any]:
    """The process that gives out the runs, or one that does them; the table ends the same."""
    whole, out = folder / "whole", folder / "killed"
    assert ended(started(*COMPARE, "--out", str(whole))) == 0
    choice = random.Random(seed)
    workers = 0
    for _ in range(kills):
        process = started(*COMPARE, "--out", str(out))
        before = _progress(out)
        deadline = time.monotonic() + 200
        wanted = before + choice.randrange(1, 10)
        while process.is_alive() and _progress(out) < wanted and time.monotonic() < deadline:
            time.sleep(0.005)
        owners = list(out.glob("cells/*/owner.json"))
        if owners and choice.random() < 0.3:
            try:
                os.kill(json.loads(owners[0].read_text())["pid"], signal.SIGKILL)
                workers += 1
            except (OSError, ValueError):
                pass  # it ended of its own accord
        process.kill()
        ended(process)
        _wait_for_workers(out)
        for run in out.glob("cells/*"):
            assert_readable(run)
    assert ended(started(*COMPARE, "--out", str(out))) == 0
    assert table_of(out) == table_of(whole)
    return {"kills": kills + workers, "of_them_workers": workers}


def _progress(out: Path) -> int:
    return sum(lines(run) for run in out.glob("cells/*"))


def _wait_for_workers(out: Path) -> None:
    """A process whose master is gone ends at once, and leaves its claim behind."""
    deadline = time.monotonic() + 200
    for owner in out.glob("cells/*/owner.json"):
        try:
            pid = json.loads(owner.read_text())["pid"]
        except (OSError, ValueError):
            continue
        while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
            time.sleep(0.01)


def table_of(out: Path) -> Any:
    found = json.loads((out / "table.json").read_text())
    for row in found["rows"]:
        del row["seconds_per_iteration"], row["relative_to_maml"]
    return found
