"""How time and memory of a MAML iteration grow with steps, shots, filters, tasks and ranks.

    python benchmarks/growth.py [--out results/growth.json]

One quantity varies at a time around a base: Omniglot's shape, 5-way 1-shot, 15 queries a class,
conv4-64, K = 5, 4 tasks, two threads. K varies at 84x84 as well (2 tasks), with and without the
memory mode (`recompute`). The points of a sweep take turns, each in a process of its own.

Two slopes are stated for each sweep: that of a straight line through the points (seconds or
megabytes for one more step, shot, ...), and that of log against log (1 is proportional, 0 is flat).
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from growth_plot import plot
from metamirror.console import say
from metamirror.core.files import write_json
from metamirror.experiments.cost import SHAPES, Workload, prepare
from metamirror.experiments.paired_timing import Program, machine, open_workers, take_turns
from ranks import run as run_ranks

BASE = Workload(shots=1)
LARGE = Workload(shape=SHAPES["mini-imagenet"], shots=1, tasks=2)
STEPS = (1, 2, 5, 10, 20)


@dataclass(frozen=True)
class Sweep:
    """One quantity that varies."""

    title: str
    varies: str
    values: tuple[int, ...]
    base: Workload


SWEEPS = (
    Sweep("steps, 28x28", "steps", STEPS, BASE),
    Sweep("steps, 84x84", "steps", STEPS, LARGE),
    Sweep("steps, 84x84, memory mode", "steps", STEPS, replace(LARGE, recompute=True)),
    Sweep("shots, 28x28", "shots", (1, 2, 5, 10, 20), BASE),
    Sweep("filters, 28x28", "width", (16, 32, 64, 128), BASE),
    Sweep("tasks, 28x28", "tasks", (1, 2, 4, 8, 16, 32), BASE),
)


def slopes(x: list[float], y: list[float]) -> dict[str, float]:
    """Of a line through the points, and of a line through their logarithms."""
    per_unit, at_zero = np.polyfit(x, y, 1)
    exponent, _ = np.polyfit(np.log(x), np.log(y), 1)
    return {"per_unit": float(per_unit), "at_zero": float(at_zero), "log_log": float(exponent)}


def described(
    title: str, varies: str, x: list[int], seconds: list[float], peak_mb: list[float]
) -> dict[str, object]:
    found = {
        "title": title,
        "varies": varies,
        "x": x,
        "seconds": seconds,
        "peak_mb": peak_mb,
        "time_slope": slopes(x, seconds),
        "memory_slope": slopes(x, peak_mb),
    }
    for what, unit in (("time_slope", "s"), ("memory_slope", "MB")):
        s = found[what]
        say(
            f"{title}: {s['at_zero']:.3g} {unit} and {s['per_unit']:.3g} {unit} a unit; "
            f"log against log {s['log_log']:.2f}"
        )
    return found


def measure(sweep: Sweep, rounds: int, threads: int) -> dict[str, object]:
    works = [replace(sweep.base, **{sweep.varies: value}) for value in sweep.values]
    programs = [
        Program(f"{sweep.varies}={value}", partial(prepare, "maml", work), threads)
        for value, work in zip(sweep.values, works, strict=True)
    ]
    with open_workers(programs) as workers:
        take_turns(workers, rounds)
        return described(
            sweep.title,
            sweep.varies,
            list(sweep.values),
            [statistics.median(worker.seconds) for worker in workers],
            [worker.peak_mb for worker in workers],
        )


def measure_ranks(rounds: int) -> dict[str, object]:
    """One thread each; the memory is that of one rank."""
    words = ["--loop", "--steps", "5"]
    found = {n: [run_ranks(n, 1, words) for _ in range(rounds)] for n in (1, 2)}
    return described(
        "ranks, 28x28",
        "ranks",
        list(found),
        [statistics.median(seconds for seconds, _ in runs) for runs in found.values()],
        [max(peak for _, peak in runs) for runs in found.values()],
    )


def memory_mode(sweeps: dict[str, dict]) -> dict[str, float]:
    """Peaks at K = 20 and 84x84, against those at K = 5."""

    def peak(title: str, steps: int) -> float:
        found = sweeps[title]
        return found["peak_mb"][found["x"].index(steps)]

    usual, lean = "steps, 84x84", "steps, 84x84, memory mode"
    return {
        "lean_20_against_lean_5": peak(lean, 20) / peak(lean, 5),
        "lean_20_against_usual_5": peak(lean, 20) / peak(usual, 5),
        "usual_20_against_usual_5": peak(usual, 20) / peak(usual, 5),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("results/growth.json"))
    parser.add_argument("--picture", type=Path, default=Path("docs/growth.svg"))
    given = parser.parse_args()
    sweeps = {s.title: measure(s, given.rounds, given.threads) for s in SWEEPS}
    ranks = measure_ranks(given.rounds)
    found = {
        "command": f"python benchmarks/growth.py --rounds {given.rounds}",
        **machine(given.threads),
        "rounds": given.rounds,
        "memory_mode": memory_mode(sweeps),
        "sweeps": [*sweeps.values(), ranks],
    }
    given.out.parent.mkdir(parents=True, exist_ok=True)
    write_json(given.out, found)
    plot(found["sweeps"], given.picture)


if __name__ == "__main__":
    main()
