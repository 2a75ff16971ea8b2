"""What the shipped starts do through the estimator: new letters, and a hand that they never saw.

    python benchmarks/starts.py     # writes results/starts.json, shown in docs/adapting.md

5 classes, 1 or 5 examples each, 15 others of each to be told apart, inductive normalisation.
Omniglot's characters (without quarter turns) are measured where they are installed.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

import metamirror as mm
from metamirror.console import Progress, say
from metamirror.core.files import read_json, write_json
from metamirror.data.store import Store, data_home
from metamirror.estimators.starts import shipped_names
from metamirror.training.run_folder import versions
from speed_table import NOTHING, markdown

RESULTS = Path(__file__).parents[1] / "results"
FILE = "starts.json"


def measure(start: str, data: str, shots: int, count: int) -> dict[str, object]:
    tasks = mm.tasks(data, split="test", ways=5, shots=shots, queries=15, batch=1)
    scores, seconds = [], []
    with Progress(f"{start} on {data}, {shots}-shot", count) as progress:
        for step in range(count):
            support, query = tasks[step]
            clf = mm.FewShotClassifier(start).fit(support.x[0], support.y[0])
            scores.append(100 * clf.score(query.x[0], query.y[0]))
            seconds.append(clf.adaptation_seconds_)
            progress.update(step + 1, f"accuracy {statistics.mean(scores):.1f} %")
    return {
        "start": start,
        "data": data,
        "shots": shots,
        "tasks": count,
        "accuracy": statistics.mean(scores),
        "ci95": 1.96 * statistics.stdev(scores) / count**0.5,
        "adaptation_ms": 1000 * statistics.median(seconds),
    }


def measure_all(count: int) -> dict[str, Any]:
    sets = ["glyphs"]
    if Store(data_home()).holds("omniglot"):
        sets.append("omniglot:turns=false")
    else:
        say("Omniglot is not installed: metamirror data add omniglot --download")
    rows = [
        measure(start, data, shots, count)
        for start in shipped_names()
        if start.startswith("glyphs-")
        for data in sets
        for shots in (1, 5)
    ]
    return {"protocol": "5-way, 15 queries, inductive", "made_with": versions(), "rows": rows}


def table(results: Path) -> str:
    """A line for each start, a column for each kind of task."""
    if not (results / FILE).exists():
        return NOTHING
    rows: dict[str, dict[str, str]] = {}
    for row in read_json(results / FILE)["rows"]:
        column = f"{row['data'].partition(':')[0]}, {row['shots']}-shot"
        shown = f"{row['accuracy']:.1f} ± {row['ci95']:.1f}"
        rows.setdefault(f"`{row['start']}`", {})[column] = shown
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    lines = [(start, *(row[column] for column in columns)) for start, row in rows.items()]
    return markdown(("start", *columns), lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tasks", type=int, default=100, help="of each kind, for each start")
    write_json(RESULTS / FILE, measure_all(parser.parse_args().tasks))


if __name__ == "__main__":
    main()
