"""Two ranks with one thread each against one rank with two threads, and with one.

    python benchmarks/ranks.py --out results/ranks.json

conv4-64 on Omniglot's shape with random pictures, 5-way 1-shot, 15 queries, K = 5, four tasks.
The three are measured in turns, so that what else the machine does falls on all of them alike;
each figure is the median over rounds of the median time of a step.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

import metamirror as mm
from metamirror.core.files import write_json
from metamirror.data import TaskStream
from metamirror.data.addressing import task_generator
from metamirror.experiments.paired_timing import peak_mb
from metamirror.storage.checkpoint import parameters_of
from metamirror.training.distributed import joined_ranks
from metamirror.training.outer_step import descend, meta_gradient

SETTINGS = {
    "one rank, one thread": (1, 1),
    "one rank, two threads": (1, 2),
    "two ranks, one thread each": (2, 1),
}
WAYS, SHOTS, QUERIES, TASKS = 5, 1, 15, 4


class Noise(TaskStream):
    """Random pictures of Omniglot's shape."""

    example_shape = (1, 28, 28)
    outputs = WAYS

    def task(self, step: int, index: int) -> mm.Task:
        random = task_generator(self.seed, self.split, step, index)

        def batch(count: int) -> mm.Batch:
            x = torch.from_numpy(random.uniform(size=(WAYS * count, 1, 28, 28))).float()
            return mm.Batch(x, torch.arange(WAYS).repeat(count))

        return mm.Task(batch(self.shots), batch(self.queries))


def measure(method: str, vectorize: bool, steps: int, warm_up: int = 2) -> None:
    """What each process runs; the first prints the seconds of each step, and its memory."""
    mm.tune_allocator()
    torch.manual_seed(0)
    with joined_ranks("cpu") as ranks:
        stream = Noise("train", SHOTS, QUERIES, 0, TASKS)
        model = mm.models.Conv4(ways=WAYS, channels=1, image_size=28, width=64)
        learner = mm.make_learner(method, model, steps=5, lr=0.01, vectorize=vectorize)
        optimizer = torch.optim.Adam(learner.parameters(), lr=1e-3)
        parameters = parameters_of(optimizer)
        seconds = []
        for step in range(warm_up + steps):
            began = time.perf_counter()
            gradient = meta_gradient(learner, parameters, stream, step, ranks)
            descend(optimizer, gradient.flat, 1.0)
            seconds.append(time.perf_counter() - began)
        ranks.part()
        if ranks.first:
            print(json.dumps({"seconds": seconds[warm_up:], "peak_mb": peak_mb()}))


def run(processes: int, threads: int, words: list[str]) -> tuple[float, float]:
    """The median time of a step under one setting, and the first rank's peak of memory."""
    launch = (
        ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
        if processes > 1
        else []
    )
    ended = subprocess.run(
        [sys.executable, *launch, __file__, "--measure", *words],
        env={**os.environ, "OMP_NUM_THREADS": str(threads)},
        capture_output=True,
        text=True,
    )
    if ended.returncode:
        raise SystemExit(ended.stderr)
    found = json.loads(ended.stdout.splitlines()[-1])
    return statistics.median(found["seconds"]), found["peak_mb"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--method", default="maml")
    parser.add_argument("--loop", action="store_true", help="task by task instead of under vmap")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        measure(given.method, not given.loop, given.steps)
        return
    words = ["--method", given.method, "--steps", str(given.steps)]
    words += ["--loop"] if given.loop else []
    rounds = [
        {name: run(*setting, words)[0] for name, setting in SETTINGS.items()}
        for _ in range(given.rounds)
    ]
    seconds = {name: statistics.median(r[name] for r in rounds) for name in SETTINGS}
    base = "one rank, one thread"
    found = {
        "command": "python " + " ".join([f"benchmarks/{Path(__file__).name}", *sys.argv[1:]]),
        "model": "conv4-64",
        "shape": "1x28x28",
        "method": given.method,
        "vectorize": not given.loop,
        "tasks_per_step": TASKS,
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "seconds_per_step": seconds,
        "times_one_rank_one_thread": {name: seconds[base] / s for name, s in seconds.items()},
        "rounds": rounds,
    }
    if given.out:
        write_json(given.out, found)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
