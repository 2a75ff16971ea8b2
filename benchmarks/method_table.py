"""The tables of methods in README and docs/choosing.md; `pages.py` puts them there."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from itertools import groupby
from pathlib import Path
from typing import Any

from metamirror.cli.main import main
from metamirror.core.files import read_json
from metamirror.methods import METHODS
from metamirror.methods.registry import GROUPS
from speed_table import NOTHING, markdown, with_interval

STUDIES = {
    "miniImageNet, 1-shot, 5 steps": ("mini-imagenet-1shot",),
    "miniImageNet, 1-shot, 1 step": ("mini-imagenet-1shot-one-step",),
    "miniImageNet, 5-shot, 1 step": ("mini-imagenet-5shot",),
    "Omniglot, 1-shot, 5 steps": ("omniglot-1shot",),
    "Omniglot, 1-shot, 1 step": ("omniglot-1shot-one-step", "omniglot-1shot-one-step-others"),
}
"""Columns, and the comparisons of one protocol that each is taken from."""
UNKNOWN = "–"


def registry(results: Path) -> str:
    """What `metamirror methods` says."""
    said = StringIO()
    with redirect_stdout(said):
        main(["methods", "--json"])
    rows: list[tuple[str, ...]] = []
    for group, methods in groupby(json.loads(said.getvalue()), key=lambda r: r["group"]):
        rows.append((f"*{GROUPS[group]}*", "", "", "", ""))
        rows += (
            (
                f"`{r['method']}`",
                r["optimizer"],
                r["geometry"],
                r["paper"],
                f"{r['extra_parameters']:,}",
            )
            for r in methods
        )
    columns = ("method", "lower-level optimiser", "loss geometry", "paper", "extra parameters")
    return markdown(columns, rows, words=4)


def sinusoid(results: Path) -> str:
    """The README's table: one figure for each method."""
    found = _sinusoid(results)
    if not found:
        return NOTHING
    rows = [
        (f"`{key}`", method.optimizer, method.geometry, found[key])
        for key, method in METHODS.items()
        if key in found
    ]
    columns = ("method", "lower-level optimiser", "loss geometry", "test MSE")
    return markdown(columns, rows, words=3)


def measured(results: Path) -> str:
    """Accuracy, cost and memory of every method and variant, as far as they were measured."""
    columns: dict[str, dict[str, str]] = {"sinusoid, MSE": _sinusoid(results)}
    columns |= {title: _study(results, names) for title, names in STUDIES.items()}
    columns["time / MAML"] = _cost(results, _ratio)
    columns["peak MB"] = _cost(results, lambda r: f"{r['peak_mb']:.0f}")
    return _side_by_side(columns)


def quickstart(results: Path) -> str:
    """The README's first table: what six minutes show, with three seeds."""
    columns = {
        f"seed {seed}": {
            row["method"]: _accuracy(row)
            for row in read_json(file)["rows"]
            if row["method"] in METHODS and row["status"] == "done"
        }
        for seed in range(3)
        if (file := results / "quickstart" / f"seed-{seed}.json").exists()
    }
    return _side_by_side(columns)


def pictures(results: Path) -> str:
    """The README's table of accuracies with one inner step, and the lead over MAML."""
    mini = STUDIES["miniImageNet, 1-shot, 1 step"]
    return _side_by_side(
        {
            "miniImageNet, 1-shot": _study(results, mini),
            "less MAML, paired": _study(results, mini, _lead),
            "miniImageNet, 5-shot": _study(results, STUDIES["miniImageNet, 5-shot, 1 step"]),
            "Omniglot, 1-shot": _study(results, STUDIES["Omniglot, 1-shot, 1 step"]),
        }
    )


def _side_by_side(columns: dict[str, dict[str, str]]) -> str:
    """A line for every method and variant that was measured."""
    measured = {label for found in columns.values() for label in found}
    if not measured:
        return NOTHING
    variants = sorted(label for label in measured if ":" in label)
    rows = [
        (f"`{label}`", *(found.get(label, UNKNOWN) for found in columns.values()))
        for label in (*(key for key in METHODS if key in measured), *variants)
    ]
    return markdown(("method", *columns), rows)


def _sinusoid(results: Path) -> dict[str, str]:
    files = {file.stem: read_json(file) for file in results.glob("sinusoid/*.json")}
    return {name: f"{found['mse']:.3f} ± {found['ci95']:.3f}" for name, found in files.items()}


def _accuracy(row: dict[str, Any]) -> str:
    return f"{row['accuracy']:.1f} ± {row['ci95']:.1f}"


def _lead(row: dict[str, Any]) -> str:
    found = row["difference_to_maml"]
    if found is None:
        return UNKNOWN
    return f"{found['mean']:+.1f} [{found['low']:+.1f}, {found['high']:+.1f}]"


def _study(
    results: Path, names: tuple[str, ...], shown: Callable[[dict[str, Any]], str] = _accuracy
) -> dict[str, str]:
    # Of a row that stands in several, the first is shown.
    files = [results / "study" / name / "table.json" for name in reversed(names)]
    rows = [row for file in files if file.exists() for row in read_json(file)["rows"]]
    return {row["method"]: shown(row) for row in rows if row["status"] == "done"}


def _ratio(row: dict[str, Any]) -> str:
    if row["method"] == "maml":
        return "1"
    return with_interval(row["relative_to_maml"], *row["ci95"])


def _cost(results: Path, shown: Callable[[dict[str, Any]], str]) -> dict[str, str]:
    file = results / "cost-omniglot-1shot.json"
    rows = read_json(file)["rows"] if file.exists() else []
    return {row["method"]: shown(row) for row in rows}
