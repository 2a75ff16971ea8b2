"""A page of docs/studies for each study, from results/study; `pages.py` writes them."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from pathlib import Path
from typing import Any

import convergence_table
from metamirror.core.files import read_json
from studies import STUDIES
from study import ELAPSED, commands

OLDER = (
    "These runs are older than the maps of this version: `blockiaf` and `gradnet` have a dual "
    "start and the standard parametrisation here."
)
PRIMAL = " Rows with `anchored=true` have a primal start."
GONE = {
    "anchored=true": "now `start=primal`, the default",
    "metric=kronecker": "now `scaling=kronecker`, the default",
}
"""Options of 0.1 that this version refuses, and what they are called today."""
WORDS = {
    "outer rate beside the start": "outer learning rate of the geometry",
    "outer rate": "outer learning rate",
    "channel(s)": "channels",
    "1 inner steps": "1 inner step",
    "1 channels": "1 channel",
    "less MAML": "minus MAML",
}
"""What lines of older files are called today."""


def measured(results: Path) -> list[str]:
    """The studies that have results."""
    return [name for name in STUDIES if (results / "study" / name / "table.json").exists()]


def page(name: str, results: Path) -> str:
    """The result, the figure if there is one, the protocol and the command."""
    study, folder = STUDIES[name], results / "study" / name
    found = read_json(folder / "table.json")
    table = [line for line in (folder / "table.md").read_text().splitlines() if line[:1] == "|"]
    parts = [
        f"# {study.title}",
        f"See here how {len(found['rows'])} rows compare, by which protocol and command.",
        study.found,
        _elapsed(folder),
        OLDER + PRIMAL * ("anchored=true" in study.options) if study.earlier else "",
        "\n".join([_in_words_of_today(table[0]), *table[1:]]),
        "\n".join(_notes(found["rows"])),
    ]
    if study.curves:
        parts += ["## Convergence", convergence_table.table(name, results)]
    parts += ["## Protocol", "\n".join(_protocol(found["protocol"]["line"]))]
    parts += ["## Command", _command(name)]
    parts.append(f"`results/study/{name}` has the table in four formats and every test task.")
    return "\n\n".join(_wrapped(part) for part in parts if part) + "\n"


def _elapsed(folder: Path) -> str:
    """How long all of it took, where it ran without a stop."""
    if not (folder / ELAPSED).exists():
        return ""
    found = read_json(folder / ELAPSED)
    return f"All of it took {found['minutes']:.0f} minutes on {found['cores']} cores."


def _wrapped(part: str) -> str:
    """Prose in lines of at most 120 characters; tables, lists and commands as they are."""
    prose = part[0].isalpha() and "\n" not in part
    return textwrap.fill(part, 120, break_on_hyphens=False) if prose else part


def _control(row: dict[str, Any]) -> bool:
    return row.get("group", row.get("kind")) == "control"  # older files call it kind


def _notes(rows: list[dict[str, Any]]) -> list[str]:
    seeds = {row["method"]: len(row["seeds"]) for row in rows if not _control(row)}
    usual = Counter(seeds.values()).most_common(1)[0][0]
    others = ", ".join(f"`{name}` {count}" for name, count in seeds.items() if count != usual)
    over = "tasks" if max(seeds.values()) == 1 else "tasks and, where there are several, seeds"
    notes = [
        f"- Seeds: {usual} for each row" + (f", but {others}." if others else "."),
        f"- ± and [ ] are 95 % intervals over {over}. Bold: the best, and all within its interval.",
        "- *Minus MAML* is the difference on the same test tasks and seeds.",
        "- *Time* was taken while other work ran; [Speed](../speed.md) has measured times.",
    ]
    if any(row.get("published") for row in rows):
        notes.append("- *In the paper* is its Table 1, at 84x84 pixels and with far more tasks.")
    return notes


def _in_words_of_today(line: str) -> str:
    for old, new in WORDS.items():
        line = line.replace(old, new)
    return line


def _protocol(line: str) -> list[str]:
    line = _in_words_of_today(line)
    line = re.sub(r"(\w+(?::\w+=\w+)+)", r"`\1`", line)  # options of methods
    items = [item for item in line.rstrip(".").split("; ") if not item.startswith("seeds:")]
    return [f"- {item[0].upper()}{item[1:]}" for item in items]


def _of_then(name: str) -> str:
    """What became of an older study's command: its options, or only its figures."""
    options = STUDIES[name].options
    gone = [f"`{old}` ({new})" for old, new in GONE.items() if old in options]
    if not gone:
        return "This version runs the command, and gives other figures."
    return f"**0.1 only: these options no longer exist**: {', '.join(gone)}."


def _command(name: str) -> str:
    lines = "\n".join(
        " \\\n        ".join(
            textwrap.wrap(command, 100, break_on_hyphens=False, break_long_words=False)
        )
        for command in commands(name)
    )
    if STUDIES[name].earlier:
        return f"```text\n{lines}\n```\n\n{_of_then(name)}"
    return f"    python benchmarks/study.py run {name}\n\nwhich runs\n\n" + textwrap.indent(
        lines, "    "
    )
