"""The tables of methods in docs/choosing.md and docs/measured.md; `pages.py` puts them there."""

from __future__ import annotations

import json
from contextlib import redirect_stdout
from io import StringIO
from itertools import groupby
from pathlib import Path
from typing import Any

from metamirror.cli.main import main
from metamirror.core.files import read_json
from metamirror.methods import METHODS
from metamirror.methods.registry import GROUPS
from speed_table import NOTHING, markdown

UNKNOWN = "–"


def _registry() -> list[dict[str, Any]]:
    """What `metamirror methods` says."""
    said = StringIO()
    with redirect_stdout(said):
        main(["methods", "--json"])
    found: list[dict[str, Any]] = json.loads(said.getvalue())
    return found


def reported(results: Path) -> str:
    """What the methods' own papers report."""
    rows = [(f"`{row['method']}`", row["reported"]) for row in _registry() if row["reported"]]
    return markdown(("method", "1-shot / 5-shot, network"), rows, words=2)


def registry(results: Path) -> str:
    """The methods by group."""
    rows: list[tuple[str, ...]] = []
    for group, methods in groupby(_registry(), key=lambda r: r["group"]):
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
    """One figure for each method."""
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


def quickstart(results: Path) -> str:
    """What six minutes show, with three seeds."""
    columns = {
        f"seed {seed}": {
            row["method"]: _accuracy(row)
            for row in read_json(file)["rows"]
            if row["method"] in METHODS and row["status"] == "done"
        }
        for seed in range(3)
        if (file := results / "quickstart" / f"seed-{seed}.json").exists()
    }
    return side_by_side(columns)


def side_by_side(columns: dict[str, dict[str, str]]) -> str:
    """A line for every method and variant that was measured."""
    measured = {label for found in columns.values() for label in found}
    if not measured:
        return NOTHING
    variants = sorted(label for label in measured if label not in METHODS)
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
