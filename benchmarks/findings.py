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
"""Studies of this version's maps: the rows and columns of docs/reproduce.md."""
OLDER_FORMS = {
    "blockiaf": "`blockiaf`, dual start",
    "blockiaf:anchored=true": "`blockiaf`, primal start",
    "blockiaf:variant=released": "`blockiaf:variant=released`",
    "gradnet": "`gradnet`, dual start",
    "gradnet:anchored=true:metric=kronecker:log_range=12": "`gradnet`, primal start",
    "metacurvature": "`metacurvature`",
}
"""Rows of studies of older maps, and what each is called today."""


ALL_OLDER = "[older maps](#older-maps)"


def bullets(results: Path) -> str:
    """Four findings for the README, each with its page, and how large the runs were."""
    ratios = [
        found["time_against"][found["fastest_peer"]][0]
        for case, found in read_json(results / "peers.json")["cases"].items()
        if case.startswith("iteration")
    ]
    one, five = "omniglot-maps-one-step", "omniglot-maps-five-steps"
    frozen = "mini-imagenet-features"
    maml = {
        name: said(difference(results, name, "blockiaf", "maml")) for name in (one, five, frozen)
    }
    curvature = difference(results, one, "blockiaf", "metacurvature")
    mixing = difference(results, one, "blockiaf:mixing=kronecker", "metacurvature")
    overfits = difference(results, frozen, "metacurvature", "maml")
    reached = [f"{_rows(results, name)['maml']['accuracy']:.1f} %" for name in (one, five)]
    return "\n".join(
        [
            f"- **Against MAML**, blockIAF on Omniglot is {maml[one]} with one inner step, and "
            f"{maml[five]} with five; on frozen features of miniImageNet it is {maml[frozen]}. "
            f"On Omniglot step sizes were not searched: MAML reaches {reached[0]} with one step "
            f"(alpha = 0.2) and {reached[1]} with five (alpha = 0.01) "
            "([results](docs/reproduce.md)).",
            "- **Against MetaCurvature**, a constant preconditioner, blockIAF on Omniglot with one "
            f"step is {said(curvature)}; with `mixing=kronecker` it is {said(mixing)} "
            f"([study](docs/studies/{one}.md)). On frozen features MetaCurvature overfits: against "
            f"MAML it is {said(overfits)} ([study](docs/studies/{frozen}.md)).",
            "- **The paper's Theorem 1 does not hold as stated.** blockIAF is in general no "
            "mirror map; `gradnet` is one by construction ([theory](docs/theory.md)).",
            "- **Speed**: a MAML iteration on a CPU takes "
            f"{min(ratios):.2f} to {max(ratios):.2f} of the time of the fastest of higher, "
            "TorchOpt and plain torch ([speed](docs/speed.md)).",
            "",
            f"[ ] is a paired 95 % interval in points of accuracy. {sizes(results)}",
        ]
    )


def verdicts(results: Path) -> str:
    """The paper's six claims, what was seen of each, and how sure that is."""
    present = current(results)
    with_curvature = [name for name in present if "metacurvature" in _rows(results, name)]
    paper = _rows(results, "mini-imagenet-1shot-one-step")
    shown = {name: paper[name]["published"] for name in ("blockiaf", "maml", "metacurvature")}
    rows = [
        (
            f"blockIAF is ahead of MAML: {shown['blockiaf']} against {shown['maml']} %",
            _leads(results, present, "maml"),
            f"{_links(present)}<br>{ALL_OLDER}",
        ),
        (
            "blockIAF is ahead of linear preconditioners: MetaCurvature has "
            f"{shown['metacurvature']} %",
            _leads(results, present, "metacurvature"),
            f"{_links(with_curvature)}<br>{ALL_OLDER}",
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
    return (
        f"{markdown(('claim of the paper', 'seen here', 'where'), rows, words=3)}\n\n"
        f"**How sure is this?** Few settings, at most three seeds. {sizes(results)} "
        "The paper's own protocol needs a GPU and was not run."
    )


def accuracies(results: Path) -> str:
    """One table: every method in every setting."""
    return side_by_side(
        {
            f"[{SETTINGS[name]}](studies/{name}.md)": {
                label: f"{row['accuracy']:.1f} ± {row['ci95']:.1f}"
                for label, row in _rows(results, name).items()
                if row["status"] == "done" and label.partition(":")[0] in METHODS
            }
            for name in current(results)
        }
    )


def older(results: Path) -> str:
    """Points minus MAML of the older maps, in every study that has accuracies."""
    rows = []
    for name in _older_studies(results):
        title = _short(name).replace(", older maps", "")
        found = [difference(results, name, form, "maml") for form in OLDER_FORMS]
        rows.append((f"[{title}](studies/{name}.md)", *(_points(lead) for lead in found)))
    return markdown(("minus MAML", *OLDER_FORMS.values()), rows)


def sizes(results: Path) -> str:
    """How large the runs in the table are, from their configurations."""
    found: dict[str, list[str]] = {}
    for name in current(results):
        config = read_json(next((results / "study" / name).glob("cells/*/config.json")))
        width = config["width"]
        model = f"conv4 with {width} filters" if width else f"a {config['model']} head"
        tasks = config["iterations"] * config["tasks_per_step"]
        found.setdefault(f"{model} and {tasks:,} tasks", []).append(SETTINGS[name].split(",")[0])
    parts = [f"{size} ({', '.join(dict.fromkeys(data))})" for size, data in found.items()]
    return f"Runs are small, on two CPU cores: {'; '.join(parts)}."


def current(results: Path) -> list[str]:
    """Studies of this version's maps that have results."""
    return [name for name in SETTINGS if name in measured(results)]


def _older_studies(results: Path) -> list[str]:
    """Those of older maps whose rows are accuracies."""
    old = [name for name in measured(results) if STUDIES[name].earlier]
    return [name for name in old if "accuracy" in _rows(results, name)["maml"]]


def _points(found: tuple[Estimate, int] | None) -> str:
    if found is None:
        return UNKNOWN
    lead = found[0]
    return f"**{lead.mean:+.1f}**" if lead.sign in ("higher", "lower") else f"{lead.mean:+.1f}"


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
    """The lead of blockIAF in every study, and in one line what older maps did."""
    lines = []
    for name in names:
        if lead := difference(results, name, "blockiaf", other):
            lines.append(f"{SETTINGS[name]}: {said(lead)}")
            rival = difference(results, name, other, "maml")
            if rival and rival[0].sign == "lower":
                lines[-1] += f"; {METHODS[other].title} against MAML: {said(rival)}"
    return "<br>".join([*lines, _older_leads(results, other)])


def _older_leads(results: Path, other: str) -> str:
    """One line: in how many rows older maps were ahead, level and behind, and by how much."""
    forms = [form for form in OLDER_FORMS if form.startswith("blockiaf")]
    pairs = [(name, form) for name in _older_studies(results) for form in forms]
    found = [lead for pair in pairs if (lead := difference(results, *pair, other))]
    signs, means = [lead.sign for lead, _ in found], [lead.mean for lead, _ in found]
    words = {"higher": "ahead in", "not significant": "level in", "lower": "behind in"}
    counts = ", ".join(f"{word} {signs.count(sign)}" for sign, word in words.items())
    return f"Older maps, {len(found)} rows: {counts} ({min(means):+.1f} to {max(means):+.1f})"


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
