"""The table of a comparison as Markdown, CSV, LaTeX and on a terminal: one layout for all four."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table as Screen

Row = Mapping[str, Any]
DIGITS = {"accuracy": 2, "mse": 4}
UNITS = {"accuracy": "accuracy, %", "mse": "MSE"}
FAILED, SOME_FAILED, MISSING = "failed", "†", "–"
ROOM = 16
"""Characters of a terminal for each column of a table that is shown whole."""


@dataclass(frozen=True)
class Entry:
    """What stands in one place of the table."""

    text: str
    bold: bool = False


@dataclass(frozen=True)
class Layout:
    """The table before it is written in some language.

    Attributes:
        protocol: the line above it.
        header: of each column.
        rows: methods.
        controls: the rows below them.
        notes: the lines below it.
    """

    protocol: str
    header: list[str]
    rows: list[list[Entry]]
    controls: list[list[Entry]]
    notes: list[str]


def measure_of(table: Mapping[str, Any]) -> str:
    """What a table is about: accuracy or mse."""
    return "mse" if any("mse" in row for row in table["rows"]) else "accuracy"


def plus_minus(measure: str, value: float | None, half: float | None) -> str:
    """A figure with half its interval.

    >>> plus_minus("accuracy", 48.701, 1.838)
    '48.70 ± 1.84'
    """
    if value is None:
        return MISSING
    digits = DIGITS[measure]
    return f"{value:.{digits}f}" + ("" if half is None else f" ± {half:.{digits}f}")


def lay_out(table: Mapping[str, Any]) -> Layout:
    """The columns of the paper's table, for each number of shots, and what we add to them."""
    measure, rows = measure_of(table), table["rows"]
    shots = list(dict.fromkeys(row["shots"] for row in rows))
    by_label: dict[str, dict[int, Row]] = {}
    for row in rows:
        by_label.setdefault(row["method"], {})[row["shots"]] = row
    published = any(row["published"] for row in rows)
    header = ["method", "lower-level optimiser", "loss geometry"]
    for count in shots:
        # With one number of shots, the line above the table has it.
        of = f"{count}-shot " if len(shots) > 1 else ""
        header.append(f"{of}{UNITS[measure]}")
        header += [f"{of}in the paper"] if published else []
        header.append(f"{of}less MAML, paired")
    header.append("extra parameters")
    header += (
        [f"{count}-shot time / MAML" for count in shots] if len(shots) > 1 else ["time / MAML"]
    )

    def line(own: dict[int, Row]) -> list[Entry]:
        first = next(iter(own.values()))
        entries = [Entry(str(first[key])) for key in ("title", "optimizer", "geometry")]
        for count in shots:
            row = own[count]
            entries.append(Entry(result(row, measure), row["bold"]))
            entries += [Entry(row["published"] or MISSING)] if published else []
            entries.append(Entry(paired(row["difference_to_maml"], measure)))
        extra = first["extra_parameters"]
        entries.append(Entry(MISSING if extra is None else f"{extra:,}"))
        for count in shots:
            relative = own[count]["relative_to_maml"]
            entries.append(Entry(MISSING if relative is None else f"{relative:.2f}"))
        return entries

    of_kind: dict[str, list[list[Entry]]] = {"method": [], "control": []}
    for own in by_label.values():
        of_kind[next(iter(own.values()))["kind"]].append(line(own))
    return Layout(
        table["protocol"]["line"], header, of_kind["method"], of_kind["control"], _notes(rows)
    )


def result(row: Row, measure: str) -> str:
    """The figure of a row; one that lost a seed is marked."""
    if row[measure] is None:
        return FAILED if row["status"] == "failed" else MISSING
    mark = f" {SOME_FAILED}" if row["status"] != "done" else ""
    return plus_minus(measure, row[measure], row["ci95"]) + mark


def paired(difference: Mapping[str, float] | None, measure: str) -> str:
    """A difference with its interval.

    >>> paired({"mean": 1.5, "low": 0.25, "high": 2.75}, "accuracy")
    '+1.50 [+0.25, +2.75]'
    """
    if difference is None or difference["mean"] is None:
        return MISSING
    digits = DIGITS[measure]
    mean, low, high = (
        "?" if difference[key] is None else f"{difference[key]:+.{digits}f}"
        for key in ("mean", "low", "high")
    )
    return f"{mean} [{low}, {high}]"


OF_THE_PAPER = (
    "In the paper: its Table 1, at 84x84 pixels; all but blockIAF's are quoted there from other "
    "papers, with networks, budgets and protocols of their own."
)
"""What must be known of figures that stand beside ours."""


def _notes(rows: Sequence[Row]) -> list[str]:
    counts: dict[str, dict[int, int]] = {}
    for row in rows:
        if any(s["seed"] is not None for s in row["seeds"]):
            counts.setdefault(row["method"], {})[row["shots"]] = len(row["seeds"])
    seeds = {count for own in counts.values() for count in own.values()}
    over = "over tasks" if seeds <= {1} else "over tasks and seeds"
    over += " (over tasks where a row has one seed)" if 1 in seeds and len(seeds) > 1 else ""
    notes = [
        f"± and [ ] are 95 % intervals {over}. Bold: the best, and all within its interval.",
        "Less MAML: on the same test tasks and seeds. Time: of an iteration, as the runs were "
        "timed while they went; `metamirror cost` measures it with care.",
    ]
    if any(row["published"] for row in rows):
        notes.append(OF_THE_PAPER)
    if len(seeds) > 1:
        told = (f"{method} {_by_shots(own)}" for method, own in counts.items())
        notes.append(f"Seeds: {', '.join(told)}.")
    for row in rows:
        where = f"{row['title']}, {row['shots']}-shot"
        if row["status"] != "done":
            mark = f"{SOME_FAILED} " if row["seeds"] else ""
            notes.append(f"{mark}{where} ({row['status']}): {row['reason']}")
    said = {row["title"]: row["note"] for row in rows if row.get("note")}
    return notes + [f"{title}: {note}." for title, note in said.items()]


def _by_shots(counts: Mapping[int, int]) -> str:
    if len(set(counts.values())) == 1:
        return str(next(iter(counts.values())))
    return " and ".join(f"{count} ({shots}-shot)" for shots, count in counts.items())


def markdown(table: Mapping[str, Any]) -> str:
    """The table for a README."""
    layout = lay_out(table)

    def line(texts: Sequence[str]) -> str:
        return "| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |"

    lines = [layout.protocol, "", line(layout.header), line(["---"] * len(layout.header))]

    def texts(row: Sequence[Entry]) -> list[str]:
        return [f"**{e.text}**" if e.bold else e.text for e in row]

    lines += [line(texts(row)) for row in layout.rows]
    for row in layout.controls:
        first, *rest = texts(row)
        lines.append(line([f"*control:* {first}", *rest]))
    return "\n".join([*lines, "", *(f"- {note}" for note in layout.notes), ""])


SPECIAL = {c: f"\\{c}" for c in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "–": "--",
    "†": r"$\dagger$",
    "α": r"$\alpha$",
    "·": r"$\cdot$",
}


def latex(table: Mapping[str, Any]) -> str:
    """The table for a paper; needs the package booktabs."""
    layout = lay_out(table)

    def plain(text: str) -> str:
        return "".join(SPECIAL.get(c, c) for c in text)

    def line(entries: Sequence[Entry]) -> str:
        texts = (
            f"\\textbf{{{plain(e.text)}}}" if e.bold else f"{{{plain(e.text)}}}" for e in entries
        )
        return " & ".join(texts) + r" \\"

    lines = [
        f"% {layout.protocol}",
        f"\\begin{{tabular}}{{lll{'r' * (len(layout.header) - 3)}}}",
        r"\toprule",
        line([Entry(text) for text in layout.header]),
        r"\midrule",
        *map(line, layout.rows),
        *([r"\midrule", *map(line, layout.controls)] if layout.controls else []),
        r"\bottomrule",
        r"\end{tabular}",
        *(f"% {note}" for note in layout.notes),
    ]
    return "\n".join([*lines, ""])


def as_csv(table: Mapping[str, Any]) -> str:
    """One line for each row and number of shots, unrounded."""
    measure = measure_of(table)
    plain = ("method", "title", "optimizer", "geometry", "kind", "shots", measure, "ci95")
    after = ("extra_parameters", "seconds_per_iteration", "relative_to_maml", "bold", "status")
    ends = ("mean", "low", "high")
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    differences = [f"difference_to_maml_{end}" for end in ends]
    writer.writerow([*plain, "seeds", "published", *differences, *after, "reason"])
    for row in table["rows"]:
        difference = row["difference_to_maml"] or dict.fromkeys(ends)
        writer.writerow(
            [
                *(row[key] for key in plain),
                len(row["seeds"]),
                row["published"],
                *(difference[end] for end in ends),
                *(row[key] for key in after),
                row["reason"],
            ]
        )
    return file.getvalue()


def show(table: Mapping[str, Any], console: Console) -> None:
    """The table on a terminal; a narrow one does without optimiser and geometry."""
    layout = lay_out(table)
    count = len(layout.header)
    columns = [i for i in range(count) if i not in (1, 2) or console.width >= ROOM * count]
    found = Screen()
    for i in columns:
        found.add_column(layout.header[i], justify="left" if i < 3 else "right", overflow="fold")
    for rows in (layout.rows, layout.controls):
        for row in rows:
            texts = [(escape(row[i].text), row[i].bold) for i in columns]
            found.add_row(*(f"[bold]{text}[/bold]" if bold else text for text, bold in texts))
        found.add_section()
    console.print(layout.protocol, markup=False, highlight=False)
    console.print(found)
    console.print("\n".join(layout.notes), markup=False, highlight=False)
