"""Frozen features: FewShotClassifier against scikit-learn's classifiers, on the same tasks.

    python benchmarks/embeddings.py FEATURES.npz --start RUN --about "..."

FEATURES.npz has the arrays x (examples, features), y and split; tasks are drawn from the classes of
the test split. Differences are paired, task by task, with 95 % intervals.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import NearestCentroid

import metamirror as mm
from metamirror.core.files import read_json, write_json
from metamirror.core.learner import Learner

SHOTS = (1, 5, 20)
PLAIN, TRAINED = OURS = "`FewShotClassifier`", "`FewShotClassifier`, meta-trained start"


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def scores(
    x: np.ndarray, y: np.ndarray, new: np.ndarray, wanted: np.ndarray, start: Learner | None
) -> dict[str, float]:
    """The share of right answers of each classifier on one task."""
    starts = {PLAIN: None} if start is None else {PLAIN: None, TRAINED: start}
    found = {}
    for name, own in starts.items():
        ours = mm.FewShotClassifier(own, device="cpu", calibrate=False).fit(x, y)
        found[name] = ours.score(new, wanted)
    for how, change in (("", lambda rows: rows), (", unit rows", unit)):
        near, logistic = NearestCentroid(), LogisticRegression(max_iter=2000)
        found[f"nearest class mean{how}"] = near.fit(change(x), y).score(change(new), wanted)
        found[f"logistic regression{how}"] = logistic.fit(change(x), y).score(change(new), wanted)
    return {name: 100 * value for name, value in found.items()}


def interval(values: np.ndarray) -> dict[str, float]:
    half = 1.96 * values.std(ddof=1) / len(values) ** 0.5
    return {"mean": values.mean(), "low": values.mean() - half, "high": values.mean() + half}


def measure(features: Path, tasks: int, start: Learner | None) -> list[dict[str, object]]:
    with np.load(features) as arrays:
        x, y = (arrays[name][arrays["split"] == "test"] for name in ("x", "y"))
    rows: list[dict[str, object]] = []
    for shots in SHOTS:
        stream = mm.tasks((x, y), "test", ways=5, shots=shots, queries=15, batch=1, splits="test")
        each: dict[str, list[float]] = {}
        for step in range(tasks):
            support, query = stream.task(step, 0)
            parts = (part.numpy() for part in (*support, *query))
            for name, value in scores(*parts, start).items():
                each.setdefault(name, []).append(value)
        for name, values in each.items():
            row = {"shots": shots, "classifier": name, "accuracy": interval(np.array(values))}
            less = {o: interval(np.array(each[o]) - np.array(values)) for o in OURS if o in each}
            rows.append({**row, "less_this": less})
    return rows


def table(file: str, results: Path) -> str:
    """The table of docs/features.md."""
    found = read_json(results / file)
    rows: dict[str, list[str]] = {}
    for row in found["rows"]:
        name = row["classifier"]
        gaps = [
            f"{gap['mean']:+.1f} [{gap['low']:+.1f}, {gap['high']:+.1f}]"
            for ours, gap in row["less_this"].items()
            if name not in OURS or (name == PLAIN and ours == TRAINED)
        ]
        text = f"{row['accuracy']['mean']:.1f}" + (f" ({'; '.join(gaps)})" if gaps else "")
        rows.setdefault(name, []).append(text)
    lines = ["| | " + " | ".join(f"{shots}-shot" for shots in SHOTS) + " |"]
    lines.append("| --- |" + " ---: |" * len(SHOTS))
    lines += [f"| {name} | {' | '.join(cells)} |" for name, cells in rows.items()]
    about = f"{found['about']}. {found['tasks']} tasks of 5 classes with 15 queries each."
    return "\n".join([*lines, "", about])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("features", type=Path)
    parser.add_argument("--start", type=Path, help="a run that was trained on such features")
    parser.add_argument("--about", required=True, help="what the features are of, and from")
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--out", type=Path, default=Path("results/embeddings.json"))
    given = parser.parse_args()
    warnings.filterwarnings("ignore", message="self.within_class_std_dev_")
    warnings.filterwarnings("ignore", category=RuntimeWarning)
    start = None if given.start is None else mm.load(given.start)
    rows = measure(given.features, given.tasks, start)
    write_json(given.out, {"about": given.about, "tasks": given.tasks, "rows": rows})
    for row in rows:
        gaps = [
            f"{v['mean']:+.2f} [{v['low']:+.2f}, {v['high']:+.2f}]"
            for v in row["less_this"].values()
        ]
        print(
            f"{row['shots']:>2}-shot  {row['classifier']:<32} {row['accuracy']['mean']:.2f}", *gaps
        )


if __name__ == "__main__":
    main()
