"""Sixteen equal cells on a Ray cluster, one at a time and two at a time, in turns.

    python benchmarks/ray_scaling.py --out results/ray_scaling.json

The cluster has a head and two nodes of one core each, on this machine, which must have two cores
and nothing else to do. Each figure is the wall-clock time of a whole `metamirror compare`, without
its report; the ratio is that of the medians over rounds.
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

from metamirror.core.files import write_json
from ray_nodes import RayNodes

CELLS, LARGEST_RATIO = 16, 0.6
COMPARE = (
    *("compare", "--data", "glyphs", "--methods", "maml", "--no-controls", "--shots", "1"),
    *("--seeds", str(CELLS), "--width", "16", "--steps", "1", "--lr", "0.1", "--queries", "5"),
    *("--iterations", "150", "--validate-every", "0", "--test-tasks", "50"),
)


def seconds(address: str, jobs: int, out: Path) -> float:
    """The time from the first start of a cell to the last record."""
    words = [*COMPARE, "--launcher", f"ray:address={address},jobs={jobs}", "--out", str(out)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    began = time.time()
    subprocess.run([sys.executable, "-m", "metamirror", *words], check=True, env=environment)
    records = [file.stat().st_mtime for file in (out / "records").glob("*.json")]
    assert len(records) == CELLS
    return max(records) - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    found: dict[int, list[float]] = {1: [], 2: []}
    with (
        tempfile.TemporaryDirectory(prefix="ray-") as folder,
        RayNodes(Path(folder, "r")) as cluster,
    ):
        # Processes start and letters are drawn: what this takes says nothing of the others.
        seconds(cluster.address, 2, Path(folder, "first"))
        for turn in range(given.rounds):
            for jobs in (1, 2) if turn % 2 == 0 else (2, 1):
                found[jobs].append(seconds(cluster.address, jobs, Path(folder, f"{turn}-{jobs}")))
    one, two = (statistics.median(times) for times in found.values())
    result = {
        "command": " ".join(["python", *sys.argv]),
        "cells": CELLS,
        "seconds": {"one worker": found[1], "two workers": found[2]},
        "ratio": two / one,
        "most": LARGEST_RATIO,
    }
    write_json(given.out, result)
    print(f"{two / one:.2f} of the time of one worker; at most {LARGEST_RATIO} is asked for")


if __name__ == "__main__":
    main()
