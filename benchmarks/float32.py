"""How far float32 meta-gradients are from float64, and two correct programs from each other.

    python benchmarks/float32.py    # writes results/float32.json; under a minute on one core

Second-order MAML with conv4 on tasks of `glyphs`, one task at a time, from a random start. The two
programs are the same mathematics: Conv4's block with derivatives in closed form (*fused*), and the
plain formula under torch's own (*plain*). In float64 they agree to about twelve digits.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

import metamirror as mm
from metamirror.core.files import read_json, write_json
from metamirror.models.conv4 import ConvBlock
from speed_table import NOTHING, markdown

ROOT = Path(__file__).parents[1]
FILE = "float32.json"
WIDTH, LR, TASKS, STEPS = 16, 0.1, 10, (1, 5)


def meta_gradient(
    model: torch.nn.Module, task: mm.Task, steps: int, *, double: bool, fast: bool
) -> Tensor:
    dtype = torch.float64 if double else torch.float32
    learner = mm.make_learner("maml", model, steps=steps, lr=LR).to(dtype)
    for module in learner.modules():
        if isinstance(module, ConvBlock):
            module.fast = fast
    own = mm.Task(*(mm.Batch(b.x.to(dtype), b.y) for b in task))
    found = torch.autograd.grad(learner.meta_loss(own), list(learner.parameters()))
    return torch.cat([g.flatten() for g in found]).double()


def differences(model: torch.nn.Module, task: mm.Task, steps: int) -> dict[str, float]:
    """Lengths of differences, against the length of the exact gradient."""
    exact, again = (
        meta_gradient(model, task, steps, double=True, fast=fast) for fast in (False, True)
    )
    plain, fused = (
        meta_gradient(model, task, steps, double=False, fast=fast) for fast in (False, True)
    )
    pairs = {
        "float64, fused and plain": (exact, again),
        "float32 plain and float64": (plain, exact),
        "float32 fused and float64": (fused, exact),
        "float32, fused and plain": (plain, fused),
    }
    return {what: float((a - b).norm() / exact.norm()) for what, (a, b) in pairs.items()}


def measured() -> list[dict[str, Any]]:
    torch.manual_seed(0)
    model = mm.models.Conv4(ways=5, channels=1, image_size=28, width=WIDTH)
    tasks = mm.tasks("glyphs", ways=5, shots=1, queries=15, batch=1)
    rows = []
    for steps in STEPS:
        found = [differences(model, tasks[i], steps) for i in range(TASKS)]
        for what in found[0]:
            each = [one[what] for one in found]
            rows.append(
                {"steps": steps, "what": what, "median": median(each), "largest": max(each)}
            )
    return rows


def table(results: Path) -> str:
    """For docs/gotchas.md."""
    file = results / FILE
    if not file.exists():
        return NOTHING
    by_case = {(row["what"], row["steps"]): row for row in read_json(file)["rows"]}
    whats = list(dict.fromkeys(what for what, _ in by_case))
    rows = [
        [what, *(f"{by_case[what, k][of]:.0e}" for k in STEPS for of in ("median", "largest"))]
        for what in whats
    ]
    headings = [f"K = {k}, {of}" for k in STEPS for of in ("median", "largest")]
    return markdown(["relative difference of", *headings], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "results" / FILE)
    out = parser.parse_args().out
    facts = {
        "command": "python benchmarks/float32.py",
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "model": f"conv4-{WIDTH}",
        "data": "glyphs, 5-way 1-shot, 15 queries",
        "lr": LR,
        "tasks": TASKS,
    }
    write_json(out, {**facts, "rows": measured()})


if __name__ == "__main__":
    main()
