"""The table of a comparison as Markdown, CSV, LaTeX, on a terminal and in a page: one layout."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table as Screen

from metamirror.core.files import write_atomically
from metamirror.experiments.comparison.table import DIGITS, MISSING, Row, plus_minus
from metamirror.report.collect import dict_or_empty, dicts_in, number, text

UNITS = {"accuracy": "accuracy, %", "mse": "MSE"}
SOME_FAILED = "†"
ENDS = ("mean", "low", "high")
WORDS = ("method", "title", "optimizer", "geometry", "published", "status", "reason", "note")
FIGURES = ("ci95", "extra_parameters", "relative_to_maml")
"""Fields of a row that are words, and that are numbers."""
ROOM = 16
"""Characters of a terminal for each column of a table that is shown whole."""
OF_THE_PAPER = (
    "In the paper: its Table 1, at 84x84 pixels; all but blockIAF's are quoted there from other "
    "papers, with networks, budgets and protocols of their own."
)
"""What must be known of figures that stand beside ours."""


@dataclass(frozen=True)
class Cell:
    """What stands in one place of a table; pages alone show notes, kinds and tooltips."""

    text: str
    bold: bool = False
    notes: tuple[str, ...] = ()  # small lines below it
    kind: str = ""  # "good" or "bad", for its colour
    tooltip: str = ""


@dataclass(frozen=True)
class Table:
    """Titles of columns with their kind ("number", "broad" or ""), and rows of cells."""

    columns: dict[str, str]
    rows: list[list[Cell]]


@dataclass(frozen=True)
class Layout:
    """A comparison: the line above the table, methods, controls with the same columns, notes."""

    protocol: str
    methods: Table
    controls: Table
    notes: list[str]


def read_rows(table: Mapping[str, Any], longest: int | None = None) -> list[Row]:
    """Return the rows of table.json with fields of their types, whatever the file has.

    Words end after `longest` characters.
    """
    rows = dicts_in(table.get("rows"))
    measure = "mse" if any("mse" in row for row in rows) else "accuracy"
    return [_read_row(row, measure, longest) for row in rows]


def _read_row(found: dict[str, Any], measure: str, longest: int | None) -> Row:
    gap = dict_or_empty(found.get("difference_to_maml"))
    words: dict[str, Any] = {name: text(found.get(name))[:longest] for name in WORDS}
    figures: dict[str, Any] = {name: number(found.get(name)) for name in FIGURES}
    return Row(
        **words | {"title": words["title"] or words["method"]},
        **figures,
        kind="control" if found.get("kind") == "control" else "method",
        shots=int(number(found.get("shots")) or 0),
        measure=measure,
        value=number(found.get(measure)),
        seeds=dicts_in(found.get("seeds")),
        difference_to_maml={end: number(gap.get(end)) for end in ENDS},
        bold=found.get("bold") is True,
    )


def lay_out(protocol: str, rows: Sequence[Row]) -> Layout:
    """Return the columns of the paper's table, for each number of shots, and what we add."""
    measure = rows[0].measure if rows else "accuracy"
    shots = list(dict.fromkeys(row.shots for row in rows))
    published = any(row.published for row in rows)
    columns = {"method": "", "lower-level optimiser": "broad", "loss geometry": "broad"}
    # With one number of shots, the line above the table has it.
    prefixes = [f"{count}-shot " if len(shots) > 1 else "" for count in shots]
    for prefix in prefixes:
        titles = [UNITS[measure], *(["in the paper"] if published else []), "less MAML, paired"]
        columns |= {f"{prefix}{title}": "number" for title in titles}
    columns["extra parameters"] = "number"
    columns |= {f"{prefix}time / MAML": "number" for prefix in prefixes}

    def cells(own: dict[int, Row]) -> list[Cell]:
        first = next(iter(own.values()))
        key = first.method if first.method != first.title else ""
        found = [Cell(first.title, notes=(key, first.note or ""))]
        found += [Cell(first.optimizer), Cell(first.geometry)]
        for row in (own.get(count) for count in shots):
            if row is None:
                found += [Cell(MISSING)] * (3 if published else 2)
                continue
            found.append(_result(row))
            found += [Cell(row.published or MISSING)] if published else []
            found.append(_paired(row))
        extra = first.extra_parameters
        found.append(Cell(MISSING if extra is None else f"{extra:,.0f}"))
        times = [own[count].relative_to_maml if count in own else None for count in shots]
        return found + [Cell(MISSING if time is None else f"{time:.2f}") for time in times]

    by_method: dict[str, dict[str, dict[int, Row]]] = {"method": {}, "control": {}}
    for row in rows:
        by_method[row.kind].setdefault(row.method, {})[row.shots] = row
    methods, controls = (
        Table(columns, [cells(own) for own in some.values()]) for some in by_method.values()
    )
    return Layout(protocol, methods, controls, _notes(rows))


def _result(row: Row) -> Cell:
    """Return the figure of a row; one that lost a seed is marked."""
    values = {s.get("seed"): number(s.get(row.measure)) for s in row.seeds}
    seeds = {s: value for s, value in values.items() if None not in (s, value)}
    digits = DIGITS[row.measure]
    tooltip = "; ".join(f"seed {seed}: {value:.{digits}f}" for seed, value in seeds.items())
    notes: tuple[str, ...] = (f"{len(seeds)} seed{'s' if len(seeds) > 1 else ''}",) if seeds else ()
    text, kind = plus_minus(row.measure, row.value, row.ci95), ""
    if row.status != "done":
        notes, kind = (*notes, f"{row.status}: {row.reason}"), "bad"
        if row.value is not None:
            text = f"{text} {SOME_FAILED}"
        elif row.status == "failed":
            text = "failed"
    return Cell(text, row.bold, notes, kind, tooltip)


def _paired(row: Row) -> Cell:
    """Return the difference from MAML with its interval."""
    gap, digits = row.difference_to_maml, DIGITS[row.measure]
    if gap is None or gap["mean"] is None:
        return Cell(MISSING)
    ends = [gap[end] for end in ENDS]
    mean, low, high = ("?" if end is None else f"{end:+.{digits}f}" for end in ends)
    sure = None not in ends and not ends[1] <= 0 <= ends[2]
    return Cell(f"{mean} [{low}, {high}]", notes=() if sure else ("not significant",))


def _notes(rows: Sequence[Row]) -> list[str]:
    counts: dict[str, dict[int, int]] = {}
    for row in rows:
        if any(seed.get("seed") is not None for seed in row.seeds):
            counts.setdefault(row.method, {})[row.shots] = len(row.seeds)
    seeds = {count for own in counts.values() for count in own.values()}
    over = "over tasks" if seeds <= {1} else "over tasks and seeds"
    over += " (over tasks where a row has one seed)" if 1 in seeds and len(seeds) > 1 else ""
    notes = [
        f"± and [ ] are 95 % intervals {over}. Bold: the best, and all within its interval.",
        "Less MAML: the difference on the same test tasks and seeds; it is not significant if its "
        "interval includes zero. Time: of a training iteration, measured during the runs; "
        "`metamirror cost` measures it more precisely.",
    ]
    if any(row.published for row in rows):
        notes.append(OF_THE_PAPER)
    if len(seeds) > 1:
        each = (f"{method} {_by_shots(own)}" for method, own in counts.items())
        notes.append(f"Seeds: {', '.join(each)}.")
    for row in rows:
        if row.status != "done":
            mark = "" if row.value is None else f"{SOME_FAILED} "
            notes.append(f"{mark}{row.title}, {row.shots}-shot ({row.status}): {row.reason}")
    said = {row.title: row.note for row in rows if row.note}
    return notes + [f"{title}: {note}." for title, note in said.items()]


def _by_shots(counts: Mapping[int, int]) -> str:
    if len(set(counts.values())) == 1:
        return str(next(iter(counts.values())))
    return " and ".join(f"{count} ({shots}-shot)" for shots, count in counts.items())


def markdown(layout: Layout) -> str:
    """Return the table for a README."""

    def line(cells: Sequence[Cell], mark: str = "") -> str:
        texts = [f"**{cell.text}**" if cell.bold else cell.text for cell in cells]
        texts[0] = mark + texts[0]
        return "| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |"

    titles = [Cell(title) for title in layout.methods.columns]
    lines = [layout.protocol, "", line(titles), line([Cell("---")] * len(titles))]
    lines += map(line, layout.methods.rows)
    lines += [line(row, "*control:* ") for row in layout.controls.rows]
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


def latex(layout: Layout) -> str:
    """Return the table for a paper; needs the package booktabs."""

    def line(cells: Sequence[Cell]) -> str:
        texts = ["{" + "".join(SPECIAL.get(c, c) for c in cell.text) + "}" for cell in cells]
        bold = [r"\textbf" if cell.bold else "" for cell in cells]
        return " & ".join(map(str.__add__, bold, texts)) + r" \\"

    columns = layout.methods.columns
    alignment = "".join("r" if kind == "number" else "l" for kind in columns.values())
    lines = [
        f"% {layout.protocol}",
        f"\\begin{{tabular}}{{{alignment}}}",
        r"\toprule",
        line([Cell(title) for title in columns]),
        r"\midrule",
        *map(line, layout.methods.rows),
        *([r"\midrule", *map(line, layout.controls.rows)] if layout.controls.rows else []),
        r"\bottomrule",
        r"\end{tabular}",
        *(f"% {note}" for note in layout.notes),
    ]
    return "\n".join([*lines, ""])


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return one line for each row of table.json, unrounded."""
    measure = "mse" if rows and "mse" in rows[0] else "accuracy"
    columns = ["method", "title", "optimizer", "geometry", "kind", "shots", measure, "ci95"]
    columns += ["seeds", "published", *(f"difference_to_maml_{end}" for end in ENDS)]
    columns += ["extra_parameters", "seconds_per_iteration", "relative_to_maml", "bold"]
    file = io.StringIO()
    writer = csv.DictWriter(
        file, [*columns, "status", "reason"], extrasaction="ignore", lineterminator="\n"
    )
    writer.writeheader()
    for row in rows:
        gap = row["difference_to_maml"] or {}
        ends = {f"difference_to_maml_{end}": gap.get(end) for end in ENDS}
        writer.writerow({**row, **ends, "seeds": len(row["seeds"])})
    return file.getvalue()


def _on_screen(table: Table, width: int) -> Screen:
    """Return a table for a terminal; a narrow one does without its broad columns."""
    wide = width >= ROOM * len(table.columns)
    shown = [i for i, kind in enumerate(table.columns.values()) if wide or kind != "broad"]
    screen = Screen()
    for i, (title, kind) in enumerate(table.columns.items()):
        if i in shown:
            screen.add_column(
                title, justify="right" if kind == "number" else "left", overflow="fold"
            )
    for row in table.rows:
        texts = [(escape(row[i].text), row[i].bold) for i in shown]
        screen.add_row(*(f"[bold]{text}[/bold]" if bold else text for text, bold in texts))
    return screen


def show(table: Mapping[str, Any], console: Console) -> None:
    """Print the table of a comparison on a terminal."""
    layout = lay_out(table["protocol"]["line"], read_rows(table))
    every = Table(layout.methods.columns, layout.methods.rows + layout.controls.rows)
    console.print(layout.protocol, markup=False, highlight=False)
    screen = _on_screen(every, console.width)
    if layout.controls.rows and layout.methods.rows:
        screen.rows[len(layout.methods.rows) - 1].end_section = True
    console.print(screen)
    console.print("\n".join(layout.notes), markup=False, highlight=False)


def cost_table(found: dict[str, Any]) -> Screen:
    """Return what `metamirror.experiments.cost.measure_cost` found, for a terminal."""
    titles = ("ms / iteration", "/ MAML", "95 %", "peak MB", "extra parameters")
    rows = []
    for row in found["rows"]:
        low, high = row["ci95"]
        texts = (
            row["method"],
            f"{row['ms_per_iteration']:.0f}",
            f"{row['relative_to_maml']:.2f}",
            f"{low:.2f}-{high:.2f}",
            f"{row['peak_mb']:.0f}",
            f"{row['extra_parameters']:,}",
        )
        rows.append([Cell(text) for text in texts])
    screen = _on_screen(Table({"method": "", **dict.fromkeys(titles, "number")}, rows), 0)
    screen.title = (
        f"conv4-{found['width']} on {found['shape']}, {found['ways']}-way "
        f"{found['shots']}-shot, {found['steps']} steps, {found['tasks']} tasks, "
        f"{found['threads']} threads, {found['rounds']} rounds"
    )
    return screen


def write_tables(out: Path, table: Mapping[str, Any]) -> None:
    """Write table.md, .csv and .tex into a folder."""
    layout = lay_out(table["protocol"]["line"], read_rows(table))
    texts = {"md": markdown(layout), "csv": as_csv(table["rows"]), "tex": latex(layout)}
    for kind, content in texts.items():
        write_atomically(out / f"table.{kind}", content.encode())
