"""Comparisons whose workers and nodes are killed (SIGKILL) at random moments.

The command that gives out the jobs goes on, and runs again what was lost. In the end the table must
be that of an undisturbed command.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from metamirror.experiments.comparison import commands, worker
from ray_nodes import NODES, RayNodes
from tests.faults.killing import COMPARE, assert_readable, ended, started, table_of

FOUR = (*COMPARE, "--checkpoint-every", "20")
KILLS_EACH = 4
"""In one comparison; of one job, five in a row that get no further would be its failure."""

Strike = Callable[[int, random.Random], str]
"""Kills a worker, given by its process, or something that it depends on; says what."""


def kill_workers(folder: Path, kills: int, seed: int = 0) -> dict[str, dict[str, int]]:
    """Kill worker processes of this machine."""

    def strike(pid: int, choice: random.Random) -> str:
        os.kill(pid, signal.SIGKILL)
        return "worker processes of this machine"

    return _kill(folder, "local:jobs=2", kills, random.Random(seed), strike)


def kill_ray(folder: Path, kills: int, seed: int = 0) -> dict[str, dict[str, int]]:
    """Kill nodes of a Ray cluster, Ray's own workers, and the worker processes beside those."""
    # The names of Ray's sockets may not be long.
    with tempfile.TemporaryDirectory(prefix="ray-") as short, RayNodes(Path(short, "r")) as cluster:
        kinds = itertools.cycle(("nodes", "Ray's own workers", "worker processes"))

        def strike(pid: int, choice: random.Random) -> str:
            match kind := next(kinds):
                case "nodes":
                    node = choice.choice(NODES)
                    cluster.kill(node)
                    cluster.start(node)  # comes back while the comparison goes on
                case "Ray's own workers":
                    os.kill(_ray_worker(pid), signal.SIGKILL)
                case _:
                    os.kill(pid, signal.SIGKILL)
            return f"{kind} of a Ray cluster"

        launcher = f"ray:address={cluster.address}"
        found = _kill(folder, launcher, kills, random.Random(seed), strike)
    assert ended(started(*FOUR, "--out", str(folder / "here"))) == 0
    assert table_of(folder / "here") == table_of(folder / "undisturbed")
    return found


def _kill(
    folder: Path, launcher: str, kills: int, choice: random.Random, strike: Strike
) -> dict[str, dict[str, int]]:
    """Compare again and again, with kills at random moments of what it takes undisturbed."""
    words = (*FOUR, "--launcher", launcher, "--out")
    begun_at = time.time()
    assert ended(started(*words, str(folder / "undisturbed"))) == 0
    # To the last record: nobody works on the report but the command itself.
    records = (folder / "undisturbed" / "records").glob("*.json")
    duration = max(file.stat().st_mtime for file in records) - begun_at
    found: Counter[str] = Counter()
    for turn in range(3 * kills):
        out, left = folder / f"killed-{turn}", kills - found.total()
        if left == 0:
            break
        process, begun = started(*words, str(out)), time.monotonic()
        for moment in sorted(choice.uniform(0, duration) for _ in range(min(left, KILLS_EACH))):
            time.sleep(max(0.0, begun + moment - time.monotonic()))
            while not (workers := _workers(out)) and process.is_alive():
                time.sleep(0.02)
            # A worker may have ended of its own accord just now: that is no kill.
            with contextlib.suppress(ProcessLookupError, FileNotFoundError):
                found.update([strike(choice.choice(workers), choice)] if workers else [])
        assert ended(process) == 0
        assert table_of(out) == table_of(folder / "undisturbed")
        for run in out.glob("cells/*"):
            assert_readable(run)
    assert found.total() == kills
    return {kind: {"kills": number} for kind, number in sorted(found.items())}


def _workers(out: Path) -> list[int]:
    """The processes that run jobs now."""
    places = [place for c in commands.working(out) for place in c.running.values()]
    pids = [int(place.rpartition(" ")[2]) for place in places]
    return [pid for pid in pids if worker.__name__ in _command(pid)]


def _ray_worker(pid: int) -> int:
    """The process of Ray's that started a worker."""
    parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    # What has lost its parent belongs to init, or to whoever stands in for it.
    if not _command(parent).startswith("ray::"):
        raise ProcessLookupError(parent)
    return parent


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""
