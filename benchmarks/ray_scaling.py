"""Sixteen equal cells on a Ray cluster of one worker node and of two, in turns.

    python benchmarks/ray_scaling.py --out results/ray_scaling.json

The nodes have one core each and are on this machine, which must have two cores and nothing else to
do; then it takes six minutes. Each figure is the time from the first cell that is given out to the
last record: what the command takes to start, and for its report, is the same on any cluster. The
ratio is that of the medians over rounds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from metamirror.core.files import read_json, write_json
from ray_nodes import NODES, RayNodes
from speed_table import NOTHING, markdown

CELLS, LARGEST_RATIO = 16, 0.6
COMPARE = (
    *("compare", "--data", "glyphs", "--methods", "maml", "--no-controls", "--shots", "1"),
    *("--width", "16", "--steps", "1", "--lr", "0.1", "--queries", "5"),
    *("--iterations", "45", "--validate-every", "0", "--test-tasks", "15"),
)
SECONDS_TO_NOTICE = 10
"""How long the head may take to notice that a node is gone."""


def seconds(address: str, out: Path, cells: int = CELLS) -> float:
    """The time from the first cell that is given out to the last record."""
    words = [*COMPARE, "--seeds", str(cells), "--launcher", f"ray:address={address}"]
    command = [sys.executable, "-m", "metamirror", *words, "--out", str(out)]
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    given, ended = (
        [file.stat().st_mtime for file in (out / folder).glob("*.json")]
        for folder in ("jobs", "records")
    )
    assert len(ended) == cells
    return max(ended) - min(given)


def measure(rounds: int) -> dict[int, list[float]]:
    """The times of one worker and of two."""
    found: dict[int, list[float]] = {1: [], 2: []}
    with (
        tempfile.TemporaryDirectory(prefix="ray-") as folder,
        RayNodes(Path(folder, "r")) as cluster,
    ):
        # Letters are drawn and files are read for the first time: that says nothing of the others.
        seconds(cluster.address, Path(folder, "first"), cells=2)
        for turn in range(rounds):
            for workers in (1, 2) if turn % 2 == 0 else (2, 1):
                if workers == 1:
                    cluster.kill(NODES[1])
                    time.sleep(SECONDS_TO_NOTICE)
                out = Path(folder, f"{turn}-{workers}")
                found[workers].append(seconds(cluster.address, out))
                if workers == 1:
                    cluster.start(NODES[1])
                    cluster.wait(NODES[1])
    return found


def table(results: Path) -> str:
    """The table of docs/cluster.md."""
    file = results / "ray_scaling.json"
    if not file.exists():
        return NOTHING
    found = read_json(file)
    medians = [statistics.median(found["seconds"][f"{n}"]) for n in (1, 2)]
    row = [str(found["cells"]), *(f"{median:.1f}" for median in medians), f"{found['ratio']:.2f}"]
    return markdown(["runs", "one worker, s", "two workers, s", "ratio"], [row])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    found = measure(given.rounds)
    one, two = (statistics.median(times) for times in found.values())
    result = {
        "command": " ".join(["python", *sys.argv]),
        "cells": CELLS,
        "seconds": {str(workers): times for workers, times in found.items()},
        "ratio": two / one,
        "most": LARGEST_RATIO,
    }
    write_json(given.out, result)
    print(f"{two / one:.2f} of the time of one worker; at most {LARGEST_RATIO} is asked for")


if __name__ == "__main__":
    main()
