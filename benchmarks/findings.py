"""What README and docs/reproduce.md say was found, from the files in results/.

Words follow the figures: a lead is called one only if its paired 95 % interval excludes zero.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np

from metamirror.core.files import file_name, read_json
from metamirror.experiments.statistics import Estimate, estimate
from metamirror.methods import METHODS
from method_table import UNKNOWN, side_by_side
from speed_table import markdown, with_interval
from studies import STUDIES
from study_page import measured

SETTINGS = {name: study.setting for name, study in STUDIES.items() if study.setting}
"""What stands in the tables of docs/reproduce.md."""
OLD_NAMES = {
    "blockiaf": "blockiaf, dual start",
    "gradnet": "gradnet, dual start",
    "blockiaf:anchored=true": "blockiaf",
    "gradnet:anchored=true:metric=kronecker:log_range=12": "gradnet",
    "gradnet:anchored=true:metric=kronecker:log_range=12:rho=0": "gradnet:rho=0",
}
"""Of methods in older studies: what each is nearest to today."""


def bullets(results: Path) -> str:
    """Four findings for the README, each with its page."""
    ratios = [
        found["time_against"][found["fastest_peer"]][0]
        for case, found in read_json(results / "peers.json")["cases"].items()
        if case.startswith("iteration")
    ]
    one, five = "omniglot-maps-one-step", "omniglot-maps-five-steps"
    frozen = "mini-imagenet-features"
    curvature = difference(results, one, "blockiaf", "metacurvature")
    mixing = difference(results, one, "blockiaf:mixing=kronecker", "metacurvature")
    on_features = difference(results, frozen, "blockiaf", "metacurvature")
    maml = [f"{_rows(results, name)['maml']['accuracy']:.1f} %" for name in (one, five)]
    return "\n".join(
        [
            "- **Against MAML** on Omniglot, blockIAF is "
            f"{said(difference(results, one, 'blockiaf', 'maml'))} with one inner step, and "
            f"{said(difference(results, five, 'blockiaf', 'maml'))} with five. "
            f"Step sizes were not searched: MAML has {maml[0]} with one step of 0.2, and "
            f"{maml[1]} with five of 0.01 ([results](docs/reproduce.md)).",
            "- **Against MetaCurvature**, a constant preconditioner, on Omniglot with one step "
            f"blockIAF is {said(curvature)}. With `mixing=kronecker` it is {said(mixing)} "
            f"([study](docs/studies/{one}.md)). On frozen features of miniImageNet blockIAF is "
            f"{said(on_features)} ([study](docs/studies/{frozen}.md)).",
            "- **The paper's Theorem 1 does not hold as stated.** blockIAF is in general no "
            "mirror map; `gradnet` is one by construction ([theory](docs/theory.md)).",
            "- **Speed**: a MAML iteration on a CPU takes "
            f"{min(ratios):.2f} to {max(ratios):.2f} of the fastest peer's time "
            "([speed](docs/speed.md)).",
        ]
    )


def verdicts(results: Path) -> str:
    """The paper's six claims, and what was seen of each."""
    present = [name for name in SETTINGS if name in measured(results)]
    paper = _rows(results, "mini-imagenet-1shot-one-step")
    shown = {name: paper[name]["published"] for name in ("blockiaf", "maml", "metacurvature")}
    rows = [
        (
            f"blockIAF is ahead of MAML: {shown['blockiaf']} against {shown['maml']} %",
            _leads(results, present, "maml"),
            _links(present),
        ),
        (
            "blockIAF is ahead of linear preconditioners: MetaCurvature has "
            f"{shown['metacurvature']} %",
            _leads(results, present, "metacurvature"),
            _links([name for name in present if "metacurvature" in _rows(results, name)]),
        ),
        (
            "Its steps converge faster than MAML's",
            _convergence(results, _reached),
            _links(_drawn(results)),
        ),
        (
            "Its loss before adaptation is lower, with gradients of comparable norm",
            _convergence(results, _initial),
            _links(_drawn(results)),
        ),
        (
            "Theorem 1: blockIAF is strictly increasing, hence a mirror map",
            "**Does not hold as stated.** A map of two numbers is a counterexample, and mirror "
            "descent with it diverges for every step size",
            "[theory](theory.md)",
        ),
        (
            "It takes 9.1 % more time than MAML, on miniImageNet 5-shot",
            _costs(results),
            "[speed](speed.md)",
        ),
    ]
    return markdown(("claim of the paper", "seen here", "where"), rows, words=3)


def accuracies(results: Path) -> str:
    """One table: every method in every setting."""
    columns = {}
    for name in measured(results):
        if name in SETTINGS:
            names = OLD_NAMES if STUDIES[name].earlier else {}
            columns[f"[{SETTINGS[name]}](studies/{name}.md)"] = {
                names.get(label, label): f"{row['accuracy']:.1f} ± {row['ci95']:.1f}"
                for label, row in _rows(results, name).items()
                if row["status"] == "done" and label.partition(":")[0] in METHODS
            }
    return side_by_side(columns)


def _rows(results: Path, name: str) -> dict[str, dict[str, Any]]:
    rows = read_json(results / "study" / name / "table.json")["rows"]
    return {row["method"]: row for row in reversed(rows)}  # of several shots the first


def difference(results: Path, name: str, method: str, other: str) -> tuple[Estimate, int] | None:
    """The paired difference on the test tasks, and the number of seeds that both rows have."""
    rows = _rows(results, name)
    if method not in rows or other not in rows:
        return None
    with (results / "study" / name / "test-tasks.csv").open() as file:
        tasks = list(csv.DictReader(file))
    shots = rows[method]["shots"]
    seeds = [{seed["seed"] for seed in rows[label]["seeds"]} for label in (method, other)]
    both = sorted(set.intersection(*seeds))
    figures = [
        [
            [float(task[f"{file_name(label)}-{shots}shot-seed{seed}"]) for task in tasks]
            for seed in both
        ]
        for label in (method, other)
    ]
    return estimate(np.array(figures[0]) - np.array(figures[1])), len(both)


def said(found: tuple[Estimate, int] | None) -> str:
    if found is None:
        return UNKNOWN
    lead, seeds = found
    word = {"higher": "ahead by ", "lower": "behind by "}.get(lead.sign, "level: ")
    size = abs(lead.mean) if lead.sign in ("higher", "lower") else lead.mean
    number = f"{size:.1f}" if word != "level: " else f"{size:+.1f}"
    count = "1 seed" if seeds == 1 else f"{seeds} seeds"
    return f"{word}{number} [{lead.low:+.1f}, {lead.high:+.1f}] ({count})"


def _leads(results: Path, names: list[str], other: str) -> str:
    """The lead of blockIAF, with a primal start where one was measured."""
    lines = []
    for name in names:
        label, start = "blockiaf", ""
        if STUDIES[name].earlier:
            primal = "blockiaf:anchored=true" in _rows(results, name)
            label = "blockiaf:anchored=true" if primal else label
            start = f", {'primal' if primal else 'dual'} start"
        if lead := difference(results, name, label, other):
            lines.append(f"{SETTINGS[name]}{start}: {said(lead)}")
    return "<br>".join(lines)


def _links(names: list[str]) -> str:
    return "<br>".join(f"[{_short(name)}](studies/{name}.md)" for name in names)


def _short(name: str) -> str:
    title = STUDIES[name].title.replace(" at 32x32", "").replace(", 5-way 1-shot", "")
    return SETTINGS.get(name, title)


def _drawn(results: Path) -> list[str]:
    """Studies of several inner steps whose convergence was drawn."""
    return [
        name
        for name in measured(results)
        if STUDIES[name].curves and "--steps 5" in STUDIES[name].options
    ]


def _convergence(results: Path, said: Any) -> str:
    parts = []
    for name in _drawn(results):
        curves = read_json(results / "study" / name / "convergence.json")["curves"]
        curve = next(curve for curve in curves if curve["label"] == "blockiaf")
        parts.append(f"{_short(name)}: {said(curve)}")
    return "<br>".join(parts)


def _reached(curve: dict[str, Any]) -> str:
    reference = curve["reference_loss"]
    reached = reference["reached_at"]
    last = f"MAML's loss after {reference['k']} step{'s' * (reference['k'] > 1)}"
    return f"{last} is not reached" if reached is None else f"{last} is reached after {reached}"


def _initial(curve: dict[str, Any]) -> str:
    loss, norm = curve["initial_loss"], curve["initial_grad_norm"]
    word = loss["verdict"] if loss["verdict"] in ("lower", "higher") else "level"
    return f"{word} ({loss['difference']:+.2f}), {norm['ratio']:.2f} of MAML's norm"


def _costs(results: Path) -> str:
    parts = []
    for shape in ("mini-imagenet-5shot", "omniglot-1shot"):
        rows = read_json(results / f"cost-{shape}.json")["rows"]
        row = next(row for row in rows if row["method"] == "blockiaf")
        parts.append(
            f"{with_interval(row['relative_to_maml'], *row['ci95'])} times MAML's on {shape}"
        )
    return ", ".join(parts)
