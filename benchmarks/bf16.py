"""What bfloat16 gives and takes on this CPU: time and memory of a MAML iteration, and accuracy.

    python benchmarks/bf16.py

The two types take turns on random images of two shapes. Accuracy is that of runs on the built-in
letters, alike but for the type: 5-way 1-shot, 1,000 iterations of 4 tasks, 600 test tasks.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

import metamirror as mm
from metamirror.core.files import read_json, write_json
from metamirror.experiments.cost import SHAPES, Workload
from metamirror.experiments.paired_timing import Program, machine, open_workers, ratio, take_turns
from metamirror.parallel.allocator import spare_memory_for, tune_allocator
from metamirror.training.config import RunConfig
from metamirror.training.evaluate_run import evaluate_run
from metamirror.training.train import train

TYPES = {"float32": None, "bfloat16": torch.bfloat16}
RUN = RunConfig(
    method="maml",
    data="glyphs",
    image_size=28,
    width=32,
    queries=5,
    steps=1,
    lr=0.2,
    iterations=1000,
    tasks_per_step=4,
    outer_lr=0.003,
    schedule="cosine",
    validate_every=0,
)


def prepare(name: str, work: Workload) -> Callable[[], object]:
    """The meta-gradient of some tasks, in one type."""
    tune_allocator()
    spare_memory_for(work.shape)
    torch.manual_seed(0)
    learner = mm.make_learner("maml", work.model(), steps=work.steps, lr=0.01, autocast=TYPES[name])
    tasks = work.stack()
    return lambda: learner.meta_gradient(tasks)


def times(work: Workload, threads: int, rounds: int) -> dict[str, object]:
    programs = [Program(name, partial(prepare, name, work), threads) for name in TYPES]
    with open_workers(programs) as workers:
        seconds = take_turns(workers, rounds)
        peaks = {worker.program.name: round(worker.peak_mb, 1) for worker in workers}
    found = ratio(seconds["bfloat16"], seconds["float32"])
    return {
        "seconds": {name: statistics.median(own) for name, own in seconds.items()},
        "of_float32": [found.median, *found.interval],
        "peak_mb": peaks,
    }


def accuracy(name: str) -> dict[str, object]:
    """What a run in one type reaches on test tasks."""
    config = replace(RUN, autocast="bf16" if TYPES[name] else "none")
    with tempfile.TemporaryDirectory() as folder:
        train(config, Path(folder, "run"))
        found = evaluate_run(Path(folder, "run"), tasks=600, every_step=False, which="last")
    return {key: found[key] for key in ("accuracy", "ci95")}


def table(results: Path) -> str:
    """The table of docs/growth.md."""
    file = results / "bf16.json"
    if not file.exists():
        return "Not measured yet."
    found = read_json(file)
    lines = ["| what | float32 | bfloat16 | ratio |", "| --- | ---: | ---: | ---: |"]
    for shape, row in found["times"].items():
        of = "{:.2f} [{:.2f}, {:.2f}]".format(*row["of_float32"])
        shown = " | ".join(f"{1000 * row['seconds'][name]:.0f} ms" for name in TYPES)
        lines.append(f"| iteration, {shape} | {shown} | {of} |")
    reached = (found["accuracy"][name] for name in TYPES)
    shown = " | ".join(f"{own['accuracy']:.1f} ± {own['ci95']:.1f}" for own in reached)
    return "\n".join([*lines, f"| accuracy on letters, % | {shown} |  |"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("results/bf16.json"))
    given = parser.parse_args()
    works = {name: Workload(shape=shape, shots=1, tasks=2) for name, shape in SHAPES.items()}
    timed = {name: times(work, given.threads, given.rounds) for name, work in works.items()}
    found = {
        "command": "python benchmarks/bf16.py",
        **machine(given.threads),
        "rounds": given.rounds,
        "times": timed,
        "accuracy": {name: accuracy(name) for name in TYPES},
    }
    given.out.parent.mkdir(parents=True, exist_ok=True)
    write_json(given.out, found)
    print(table(given.out.parent))


if __name__ == "__main__":
    main()
