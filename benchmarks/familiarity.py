"""How often a start for letters says that examples do not look like what it was trained on.

    python benchmarks/familiarity.py    # writes results/familiarity.json, shown in docs/adapting.md

Letters of unseen scripts and characters drawn by people should not be noticed, photographs should.
5 classes, 1 or 5 examples each. Omniglot and miniImageNet have to be installed.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import metamirror as mm
from metamirror.core.files import read_json, write_json
from metamirror.estimators.familiarity import unfamiliar
from metamirror.estimators.inputs.images import Images, image_shape
from metamirror.estimators.starts import open_start, shipped_names
from metamirror.training.run_folder import versions
from speed_table import NOTHING, markdown

RESULTS = Path(__file__).parents[1] / "results"
FILE = "familiarity.json"
SETS = {
    "glyphs": "letters of unseen scripts",
    "omniglot": "Omniglot",
    "mini-imagenet": "photographs",
}


def noticed(start: str, data: str, shots: int, count: int) -> int:
    """In how many of so many tasks the examples are called unfamiliar."""
    tasks = mm.tasks(data, split="test", ways=5, shots=shots, queries=1, batch=1)
    reader = Images(*image_shape(open_start(start).model))
    images = (reader.read(tasks[step].support.x[0]) for step in range(count))
    return sum(unfamiliar(start, x) is not None for x in images)


def measure(count: int) -> dict[str, Any]:
    rows = [
        {
            "start": start,
            "data": data,
            "shots": shots,
            "tasks": count,
            "noticed": noticed(start, data, shots, count),
        }
        for start in shipped_names()
        if start.startswith("glyphs-")
        for data in SETS
        for shots in (1, 5)
    ]
    return {"protocol": "5-way, test classes", "made_with": versions(), "rows": rows}


def table(results: Path) -> str:
    """A line for each kind of images; the least and the most of all starts, on the same tasks."""
    if not (results / FILE).exists():
        return NOTHING
    rows = read_json(results / FILE)["rows"]
    lines = []
    for data, title in SETS.items():
        cells = []
        for shots in (1, 5):
            own = [row for row in rows if (row["data"], row["shots"]) == (data, shots)]
            ends = sorted({min(r["noticed"] for r in own), max(r["noticed"] for r in own)})
            cells.append(f"{' to '.join(map(str, ends))} of {own[0]['tasks']}")
        lines.append((title, *cells))
    return markdown(("tasks in which `fit` warns, any `glyphs-` start", "1-shot", "5-shot"), lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, default=100, help="of each kind, for each start")
    write_json(RESULTS / FILE, measure(parser.parse_args().tasks))


if __name__ == "__main__":
    main()
