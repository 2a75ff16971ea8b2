"""Frozen features: FewShotClassifier against scikit-learn's classifiers, on the same tasks.

    python benchmarks/embeddings.py FEATURES.npz --about "..." --out results/embeddings.json

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

SHOTS = (1, 5, 20)


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def scores(x: np.ndarray, y: np.ndarray, new: np.ndarray, wanted: np.ndarray) -> dict[str, float]:
    """The share of right answers of each classifier on one task."""
    ours = mm.FewShotClassifier(device="cpu").fit(x, y)
    found = {"FewShotClassifier": ours.score(new, wanted)}
    for how, change in (("", lambda rows: rows), (", unit rows", unit)):
        near, logistic = NearestCentroid(), LogisticRegression(max_iter=2000)
        found[f"nearest class mean{how}"] = near.fit(change(x), y).score(change(new), wanted)
        found[f"logistic regression{how}"] = logistic.fit(change(x), y).score(change(new), wanted)
    return {name: 100 * value for name, value in found.items()}


def interval(values: np.ndarray) -> dict[str, float]:
    half = 1.96 * values.std(ddof=1) / len(values) ** 0.5
    return {"mean": values.mean(), "low": values.mean() - half, "high": values.mean() + half}


def measure(features: Path, tasks: int) -> list[dict[str, object]]:
    with np.load(features) as arrays:
        x, y = (arrays[name][arrays["split"] == "test"] for name in ("x", "y"))
    rows: list[dict[str, object]] = []
    for shots in SHOTS:
        stream = mm.tasks((x, y), "test", ways=5, shots=shots, queries=15, batch=1, splits="test")
        each: dict[str, list[float]] = {}
        for step in range(tasks):
            support, query = stream.task(step, 0)
            parts = (part.numpy() for part in (*support, *query))
            for name, value in scores(*parts).items():
                each.setdefault(name, []).append(value)
        ours = np.array(each["FewShotClassifier"])
        for name, values in each.items():
            row = {"shots": shots, "classifier": name, "accuracy": interval(np.array(values))}
            rows.append({**row, "ours_less_this": interval(ours - np.array(values))})
    return rows


def table(results: Path) -> str:
    """The table of docs/adapting.md."""
    found = read_json(results / "embeddings.json")
    rows: dict[str, list[str]] = {}
    for row in found["rows"]:
        less = row["ours_less_this"]
        gap = f" ({less['mean']:+.1f} [{less['low']:+.1f}, {less['high']:+.1f}])"
        own = row["classifier"] == "FewShotClassifier"
        text = f"{row['accuracy']['mean']:.1f}" + ("" if own else gap)
        rows.setdefault(f"`{row['classifier']}`" if own else row["classifier"], []).append(text)
    lines = ["| | " + " | ".join(f"{shots}-shot" for shots in SHOTS) + " |"]
    lines.append("| --- |" + " ---: |" * len(SHOTS))
    lines += [f"| {name} | {' | '.join(cells)} |" for name, cells in rows.items()]
    about = f"{found['about']}. {found['tasks']} tasks of 5 classes with 15 queries each."
    return "\n".join([*lines, "", about])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("features", type=Path)
    parser.add_argument("--about", required=True, help="what the features are of, and from")
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--out", type=Path, default=Path("results/embeddings.json"))
    given = parser.parse_args()
    warnings.filterwarnings("ignore", message="self.within_class_std_dev_")
    warnings.filterwarnings("ignore", category=RuntimeWarning)
    rows = measure(given.features, given.tasks)
    write_json(given.out, {"about": given.about, "tasks": given.tasks, "rows": rows})
    for row in rows:
        accuracy, less = row["accuracy"], row["ours_less_this"]
        print(
            f"{row['shots']:>2}-shot  {row['classifier']:<32} {accuracy['mean']:.2f}  "
            f"ours less this {less['mean']:+.2f} [{less['low']:+.2f}, {less['high']:+.2f}]"
        )


if __name__ == "__main__":
    main()
