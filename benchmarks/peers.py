"""The same meta-iteration in metamirror, TorchOpt, higher and a plain torch loop, in turns.

    python benchmarks/peers.py --shape omniglot,mini-imagenet --shots 1,5 --threads 1,2
    python benchmarks/peers.py --adapt --threads 1,2
    python benchmarks/peers.py --features linear,mlp --threads 1

conv4-64, 5-way, 15 queries a class, 5 steps, 4 tasks, second order, float32, random pictures. With
`--adapt`: adapting to one new task and predicting its 75 queries. With `--features`: 32 tasks with
640 numbers an example, for a linear layer, or an MLP with two hidden layers of 64 units. First all
programs must agree in float64. Then each works in its own process, one at a time, in rounds; a
ratio is the median over rounds, with its bootstrap interval. Cases are added to the file, or
replaced there.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from dataclasses import asdict, replace
from functools import partial
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

import peer_programs as peers
from metamirror.console import Progress
from metamirror.core.files import read_json, write_json
from metamirror.experiments.cost import Workload, parse_shape
from metamirror.experiments.paired_timing import (
    Program,
    Worker,
    machine,
    open_workers,
    ratio,
    take_turns,
)
from peer_programs import Features

OURS = "metamirror"
AGREEMENT = 1e-8
# One iteration on pictures is long enough to be timed; an adaptation is not.
SHORT_TURN = 1.0
HIDDEN = {"linear": (), "mlp": (64, 64)}
"""The hidden layers of what `--features` measures."""


def summary(worker: Worker) -> dict[str, Any]:
    """Return what a worker's turns came to, for a file."""
    return {
        "seconds": statistics.median(worker.seconds),
        "cpu_seconds": statistics.median(worker.cpu_seconds),
        "peak_mb": round(worker.peak_mb, 1),
        "idle_mb": round(worker.idle_mb, 1),
        "iterations_per_turn": worker.repeats,
        "turns": [round(s, 6) for s in worker.seconds],
    }


def measure(
    work: Workload | Features, threads: int, rounds: int, adapt: bool, tune_peers: bool
) -> dict[str, object]:
    programs = dict(peers.ADAPTATIONS if adapt else peers.META_GRADIENTS)
    names = peers.installed(programs)
    if missing := set(programs) - set(names):
        raise ValueError(f"{', '.join(missing)} is not installed: pip install 'metamirror[bench]'")
    # Two tasks show that a mean is taken; more would only take longer.
    few = replace(work, tasks=min(2, work.tasks))
    differences = peers.largest_difference(programs, names, few)
    if max(differences.values()) > AGREEMENT:
        raise ValueError(f"the programs do not compute the same: {differences}")
    short = adapt or isinstance(work, Features)
    with (
        open_workers(
            Program(
                name,
                partial(peers.prepare, programs[name], tune_peers or name == OURS, work),
                threads,
            )
            for name in names
        ) as workers,
        Progress("peers", rounds * len(workers)) as progress,
    ):

        def show(worker: Worker) -> None:
            done = sum(len(w.seconds) for w in workers)
            progress.update(done, f"{worker.program.name} {worker.seconds[-1]:.3f} s")

        seconds = take_turns(
            workers, rounds, turn_seconds=SHORT_TURN if short else 0.0, after_turn=show
        )
        rows = {worker.program.name: summary(worker) for worker in workers}
    others = [name for name in names if name != OURS]
    fastest = min(others, key=lambda name: rows[name]["seconds"])
    leanest = min(others, key=lambda name: rows[name]["peak_mb"])
    against = {name: ratio(seconds[OURS], seconds[name]) for name in others}
    return {
        **asdict(work),
        **machine(threads),
        "versions": {name: version(name) for name in names if name in ("torchopt", "higher")},
        "float64_differences": differences,
        "rounds": rounds,
        "tasks_per_second": work.tasks / rows[OURS]["seconds"],
        "tuned_peers": tune_peers,
        "fastest_peer": fastest,
        "time_against": {name: [r.median, *r.interval] for name, r in against.items()},
        "leanest_peer": leanest,
        "memory_against_leanest": rows[OURS]["peak_mb"] / rows[leanest]["peak_mb"],
        "programs": rows,
    }


def show_case(key: str, found: dict) -> None:
    print(f"\n{key}: float64 results differ by {max(found['float64_differences'].values()):.1e}")
    print(f"  {'':12} {'seconds':>9} {'CPU s':>9} {'peak MB':>8}   metamirror's time against it")
    for name, row in found["programs"].items():
        against = ""
        if name in found["time_against"]:
            median, low, high = found["time_against"][name]
            mark = "  (the fastest peer)" if name == found["fastest_peer"] else ""
            against = f"{median:.3f} [{low:.3f}, {high:.3f}]{mark}"
        times = f"{row['seconds']:9.4f} {row['cpu_seconds']:9.4f}"
        print(f"  {name:12} {times} {row['peak_mb']:8.0f}   {against}")
    print(
        f"  memory against the leanest, {found['leanest_peer']}: "
        f"{found['memory_against_leanest']:.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", default="omniglot", help="with commas, as in `metamirror cost`")
    parser.add_argument("--features", default="", help="linear, mlp or both, in place of pictures")
    parser.add_argument("--shots", default="1", help="with commas")
    parser.add_argument("--threads", default="2", help="with commas")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--adapt", action="store_true", help="measure adaptation and prediction")
    parser.add_argument(
        "--tune-peers",
        action="store_true",
        help="let the peers have metamirror.tune_allocator() as well, to see what it is worth",
    )
    parser.add_argument("--out", type=Path, default=Path("results/peers.json"))
    given = parser.parse_args()
    shapes = given.features or given.shape
    cases = product(*(words.split(",") for words in (shapes, given.shots, given.threads)))
    for shape, shots, threads in cases:
        work: Workload | Features
        if given.features:
            work = Features(hidden=HIDDEN[shape], shots=int(shots))
            shape = f"{work.inputs} features, {shape},"
        else:
            work = Workload(
                shape=parse_shape(shape),
                shots=int(shots),
                width=given.width,
                tasks=1 if given.adapt else 4,
            )
        what = "adapt" if given.adapt else "iteration"
        key = f"{what} {shape} {shots}-shot {threads} threads"
        key += ", peers with the allocator tuned" if given.tune_peers else ""
        found = measure(work, int(threads), given.rounds, given.adapt, given.tune_peers)
        # Read again: another campaign may have written meanwhile.
        known = read_json(given.out)["cases"] if given.out.exists() else {}
        words = " ".join(sys.argv[1:])
        known[key] = {"command": f"python benchmarks/peers.py {words}".strip(), **found}
        given.out.parent.mkdir(parents=True, exist_ok=True)
        write_json(given.out, {"cases": dict(sorted(known.items()))})
        show_case(key, found)


if __name__ == "__main__":
    main()
