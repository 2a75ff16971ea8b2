"""How long training takes to an accuracy on validation tasks: metamirror, and MAML elsewhere.

    python benchmarks/time_to_accuracy.py --data omniglot --target 95 [--out FILE]

5-way 1-shot, conv4 with 32 filters, 4 tasks an iteration, one thread. All begin with the same
network, see the same tasks in the same order and use Adam with the same learning rate. They take
turns of 50 iterations in one process, whose allocator is tuned for all of them. After a turn the
accuracy on 200 validation tasks is measured, which is not counted; a program that has reached the
target is done. Counted is the processor time of drawing tasks, of the meta-gradient and of the
outer step.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import nn

import metamirror as mm
import peer_programs as peers
from metamirror.console import say
from metamirror.core.files import read_json, write_json
from metamirror.data import TaskStream
from metamirror.experiments.paired_timing import machine

RATES = {"omniglot": (0.2, 0.003, 1, 5), "mini-imagenet": (0.01, 0.001, 5, 15)}
"""Inner and outer learning rate, steps and queries of the comparisons of docs/reproduce.md."""
SIZES = {"omniglot": 28, "mini-imagenet": 32}
TURN, WIDTH, TASKS, VALIDATION = 50, 32, 4, 200


@dataclass
class Contender:
    """A program that trains: its accuracy after every turn, and its seconds of training."""

    name: str
    gradient: Callable[[mm.Task], list[torch.Tensor]]
    parameters: list[nn.Parameter]
    evaluated: Callable[[], mm.Learner]
    optimizer: torch.optim.Optimizer
    seconds: float = 0.0
    curve: list[tuple[int, float, float]] = field(default_factory=list)

    def train(self, stream: TaskStream, begin: int) -> None:
        began = time.process_time()
        for step in range(begin, begin + TURN):
            tasks = stream[step]
            for p, grad in zip(self.parameters, self.gradient(tasks), strict=True):
                p.grad = grad
            self.optimizer.step()
        self.seconds += time.process_time() - began

    def reached(self, target: float) -> float | None:
        return next((seconds for _, accuracy, seconds in self.curve if accuracy >= target), None)


def ours(method: str, model: nn.Module, steps: int, lr: float, outer_lr: float) -> Contender:
    learner = mm.make_learner(method, model, steps=steps, lr=lr)
    parameters = [p for p in learner.parameters() if p.requires_grad]

    def gradient(tasks: mm.Task) -> list[torch.Tensor]:
        return list(learner.meta_gradient(tasks)[1])

    optimizer = torch.optim.Adam(parameters, lr=outer_lr)
    return Contender(f"metamirror, {method}", gradient, parameters, lambda: learner, optimizer)


def theirs(name: str, model: mm.models.Conv4, steps: int, lr: float, outer_lr: float) -> Contender:
    net = peers.sequential(model)
    learner = mm.make_learner("maml", model, steps=steps, lr=lr)
    acting = [p for n, p in learner.model.named_parameters() if not n.endswith("conv.bias")]

    def evaluated() -> mm.Learner:
        with torch.no_grad():
            for own, p in zip(acting, net.parameters(), strict=True):
                own.copy_(p)
        return learner

    parameters = list(net.parameters())
    optimizer = torch.optim.Adam(parameters, lr=outer_lr)
    gradient = peers.PEERS[name](net, steps, lr)
    return Contender(f"{name}, maml", gradient, parameters, evaluated, optimizer)


def contenders(methods: list[str], data: str, seed: int) -> list[Contender]:
    lr, outer_lr, steps, _ = RATES[data]
    channels = 1 if data == "omniglot" else 3

    def model() -> mm.models.Conv4:
        torch.manual_seed(seed)
        return mm.models.Conv4(5, channels, SIZES[data], WIDTH)

    names = peers.installed(peers.META_GRADIENTS)
    if missing := set(peers.PEERS) - set(names):
        raise ValueError(f"{', '.join(missing)} is not installed: pip install 'metamirror[bench]'")
    return [
        *(ours(method, model(), steps, lr, outer_lr) for method in methods),
        *(theirs(name, model(), steps, lr, outer_lr) for name in peers.PEERS),
    ]


def campaign(methods: list[str], data: str, target: float, seed: int, most: int) -> dict[str, Any]:
    queries = RATES[data][3]
    common = {"ways": 5, "shots": 1, "queries": queries, "image_size": SIZES[data]}
    train = mm.tasks(data, "train", batch=TASKS, seed=seed, **common)
    val = mm.tasks(data, "val", batch=1, **common)
    everyone = contenders(methods, data, seed)
    for begin in range(0, most, TURN):
        left = [c for c in everyone if c.reached(target) is None]
        if not left:
            break
        for one in left:
            one.train(train, begin)
            accuracy = mm.evaluate(one.evaluated(), val, n=VALIDATION).mean
            one.curve.append((begin + TURN, accuracy, one.seconds))
            say(f"{one.name}: {begin + TURN} iterations, {one.seconds:.0f} s, {accuracy:.1f} %")
    rows = {c.name: {"seconds": c.reached(target), "curve": c.curve} for c in everyone}
    times = [row["seconds"] for name, row in rows.items() if not name.startswith("metamirror")]
    fastest = min((t for t in times if t is not None), default=None)
    for name, row in rows.items():
        known = name.startswith("metamirror") and row["seconds"] and fastest
        row["of_the_fastest_peer"] = row["seconds"] / fastest if known else None
    lr, outer_lr, steps, queries = RATES[data]
    setting = {"target": target, "seed": seed, "lr": lr, "outer_lr": outer_lr, "steps": steps}
    versions = {name: version(name) for name in ("torchopt", "higher")}
    return {**setting, **machine(1), "versions": versions, "programs": rows}


def table(results: Path) -> str:
    """The table of docs/speed.md."""
    lines = ["| data, validation accuracy | program | seconds | of the fastest peer |"]
    lines.append("| --- | --- | ---: | ---: |")
    for case in read_json(results / "time_to_accuracy.json")["cases"].values():
        for name, row in case["programs"].items():
            seconds = "not reached" if row["seconds"] is None else f"{row['seconds']:.0f}"
            share = row["of_the_fastest_peer"]
            shown = "–" if share is None else f"{share:.2f}"
            what = f"{case['data']}, {case['target']:g} %"
            lines.append(f"| {what} | {name} | {seconds} | {shown} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="omniglot", choices=sorted(RATES))
    parser.add_argument("--target", type=float, default=95)
    parser.add_argument("--methods", default="blockiaf:mixing=kronecker,blockiaf,maml")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--most", type=int, default=10_000, help="iterations of each program")
    parser.add_argument("--out", type=Path, default=Path("results/time_to_accuracy.json"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    mm.tune_allocator()
    methods = given.methods.split(",")
    found = campaign(methods, given.data, given.target, given.seed, given.most)
    known = read_json(given.out)["cases"] if given.out.exists() else {}
    command = " ".join(["python benchmarks/time_to_accuracy.py", *sys.argv[1:]])
    known[f"{given.data} seed {given.seed}"] = {"data": given.data, "command": command, **found}
    write_json(given.out, {"cases": known})
    print(table(given.out.parent))


if __name__ == "__main__":
    main()
