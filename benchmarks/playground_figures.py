"""How long the playground takes to answer, alone and with twenty clients, and what it recognises.

    python benchmarks/playground_figures.py    # writes results/playground.json, shown in
                                               # docs/playground.md

Recognition is measured on letters of unseen scripts (glyphs) and on characters that people have
drawn (omniglot, where it is installed), once as they are and once as the playground prepares them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import metamirror as mm
from metamirror.core.files import read_json, write_json
from metamirror.playground.images import prepare
from metamirror.playground.models import FIRST, PLAIN, Choice, on_offer
from serving import Served, served
from speed_table import NOTHING, markdown

CLIENTS = 20
FILE = "playground.json"


def ask(server: Served, start: str, letters: dict[str, Any], steps: int) -> tuple[float, str]:
    """Seconds until the answer to one adaptation, and its model."""
    asked = {"start": start, "steps": steps, "lr": None, "classes": letters["classes"]}
    begun = time.perf_counter()
    status, content = server.ask("/api/adapt", asked)
    if status != 200:
        raise RuntimeError(content)
    return time.perf_counter() - begun, json.loads(content)["model"]


def measure_answers(repeat: int) -> dict[str, Any]:
    with served() as server:
        starts = json.loads(server.ask("/api/starts")[1])["starts"]
        letters = json.loads(server.ask("/api/samples/0")[1])
        rows = []
        for start in starts:
            key, steps = start["key"], start["steps"]
            ask(server, key, letters, steps)
            waits = [ask(server, key, letters, steps)[0] for _ in range(repeat)]
            rows.append(
                {
                    "start": key,
                    "steps": steps,
                    "median_ms": round(1000 * statistics.median(waits)),
                    "slowest_ms": round(1000 * max(waits)),
                }
            )
        begun = time.perf_counter()
        with ThreadPoolExecutor(CLIENTS) as pool:
            keys = [starts[i % len(starts)]["key"] for i in range(CLIENTS)]
            found = list(pool.map(lambda key: ask(server, key, letters, 5), keys))
        return {
            "alone": rows,
            "together": {
                "clients": CLIENTS,
                "answers": len(found),
                "seconds": round(time.perf_counter() - begun, 2),
                "median_ms": round(1000 * statistics.median(wait for wait, _ in found)),
                "memory_mb": round(server.megabytes()),
            },
        }


def accuracy(choice: Choice, data: str, tasks: int, prepared: bool) -> dict[str, Any]:
    """5 classes, one example each, 5 others each to recognise."""
    stream = mm.tasks(
        data, "test", ways=5, shots=1, queries=5, batch=1, image_size=choice.reader.size
    )

    def pictures(x: torch.Tensor) -> np.ndarray:
        pixels = (255 * x[0]).round().byte().permute(0, 2, 3, 1).numpy()
        if not prepared:
            return pixels
        return np.stack([prepare(p, replace(choice.reader, ink=True)) for p in pixels])

    shares = []
    for step in range(tasks):
        (x, y), (new_x, new_y) = stream[step]
        fitted = mm.FewShotClassifier(choice.start, device="cpu").fit(pictures(x), y[0])
        shares.append(100 * fitted.score(pictures(new_x), new_y[0]))
    return {
        "start": choice.key,
        "data": data,
        "prepared": prepared,
        "tasks": tasks,
        "accuracy": round(statistics.mean(shares), 2),
        "ci95": round(1.96 * statistics.pstdev(shares) / tasks**0.5, 2),
    }


def installed(data: str) -> bool:
    try:
        mm.tasks(data, "test", ways=5, shots=1, queries=5, batch=1)
    except ValueError:
        return False
    return True


def figures(results: Path) -> str:
    """What the page says of the measurements."""
    file = results / FILE
    if not file.exists():
        return NOTHING
    found = read_json(file)
    shares = {
        (row["data"], row["prepared"]): f"{row['accuracy']:.1f} ± {row['ci95']:.1f} %"
        for row in found["recognised"]
        if row["start"] == FIRST
    }
    alone = next(row for row in found["alone"] if row["start"] == FIRST)
    together = found["together"]
    tasks = found["recognised"][0]["tasks"]
    subjects = {
        "omniglot": "Omniglot: characters drawn by people",
        "glyphs": "`glyphs`: letters of unseen scripts, all of one size",
    }
    table = markdown(
        (f"`{FIRST}`, 5 classes, 1 example each, {tasks} tasks", "as they are", "as prepared here"),
        [(words, shares[data, False], shares[data, True]) for data, words in subjects.items()],
    )
    return (
        f"{table}\n\n"
        f"An adaptation of {alone['steps']} steps, with gradient descent beside it, takes "
        f"{alone['median_ms']} ms (median) until the answer is\nthere; {together['clients']} "
        f"clients that ask at once all have theirs within {together['seconds']:.1f} s. Two cores, "
        f"which other work\nshared."
    )


def measure(repeat: int, tasks: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    answers = measure_answers(repeat)
    print(json.dumps(answers, indent=2))
    rows = []
    for data in filter(installed, ("glyphs", "omniglot")):
        for key in (FIRST, PLAIN):
            for prepared in (False, True):
                rows.append(accuracy(on_offer(None)[key], data, tasks, prepared))
                print(rows[-1], flush=True)
    return {"torch": torch.__version__, **answers, "recognised": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results" / FILE)
    parser.add_argument("--repeat", type=int, default=15, help="adaptations of each start")
    parser.add_argument("--tasks", type=int, default=100)
    given = parser.parse_args()
    write_json(given.out, measure(given.repeat, given.tasks))


if __name__ == "__main__":
    main()
