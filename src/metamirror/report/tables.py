"""The table of a comparison as Markdown, CSV, LaTeX, on a terminal and in a page: one layout."""

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as Screen
from rich.text import Text

from metamirror.core.files import write_atomically
from metamirror.core.metrics import METRICS, Metric, metric_in
from metamirror.data.sizes import Count, as_count
from metamirror.experiments.comparison.table import MISSING, Row, plus_minus
from metamirror.methods import METHODS
from metamirror.methods.registry import GROUPS, Group
from metamirror.report.collect import dict_or_empty, dicts_in, number

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
    """A comparison: the line above it, a table for each group that has rows, notes.

    All tables have the same columns. They stand under the group's title, if there are several.
    """

    protocol: str
    columns: dict[str, str]
    tables: dict[str, Table]
    notes: list[str]


def read_rows(table: Mapping[str, Any], longest: int | None = None) -> list[Row]:
    """Return the rows of table.json with fields of their types, whatever the file has.

    Words end after `longest` characters.
    """
    rows = dicts_in(table.get("rows"))
    measure = measure_of(table)
    return [_read_row(row, measure, longest) for row in rows]


def measure_of(table: Mapping[str, Any]) -> Metric:
    """Return what the figures of table.json are; those of earlier versions do not say it."""
    described = dict_or_empty(dict_or_empty(table.get("protocol")).get("metric"))
    regression = any("mse" in row for row in dicts_in(table.get("rows")))
    return metric_in(described or {"metric": "mse" if regression else "accuracy"})


def _read_row(found: dict[str, Any], measure: Metric, longest: int | None) -> Row:
    gap = dict_or_empty(found.get("difference_to_maml"))
    words: dict[str, Any] = {name: str(found.get(name) or "")[:longest] for name in WORDS}
    figures: dict[str, Any] = {name: number(found.get(name)) for name in FIGURES}
    return Row(
        **words | {"title": words["title"] or words["method"]},
        **figures,
        group=_group(found),
        shots=_shots(found.get("shots")),
        measure=measure,
        value=number(found.get(measure.name)),
        seeds=dicts_in(found.get("seeds")),
        difference_to_maml={end: number(gap.get(end)) for end in ENDS},
        bold=found.get("bold") is True,
    )


def _group(found: dict[str, Any]) -> Group:
    """Return a row's group; an earlier version wrote which rows are controls, and no more."""
    if "control" in (found.get("group"), found.get("kind")):
        return "control"
    key = str(found.get("method")).partition(":")[0]
    known: Group = METHODS[key].group if key in METHODS else "own"
    return next((group for group in GROUPS if group == found.get("group")), known)


def _shots(found: object) -> Count:
    try:
        return as_count("shots", found)
    except ValueError:
        return 0


def lay_out(protocol: str, rows: Sequence[Row]) -> Layout:
    """Return the columns of the paper's table, for each number of shots, and what we add."""
    measure = rows[0].measure if rows else METRICS["accuracy"]
    shots = list(dict.fromkeys(row.shots for row in rows))
    columns = {"method": "", "lower-level optimiser": "broad", "loss geometry": "broad"}
    # With one number of shots, the line above the table has it.
    prefixes = {count: f"{count}-shot " if len(shots) > 1 else "" for count in shots}
    by_shots: dict[str, Callable[[Row], Cell]] = {measure.heading: _result}
    if any(row.published for row in rows):
        by_shots["in the paper"] = lambda row: Cell(row.published or MISSING)
    better = "" if measure.higher else " (below 0 is better)"
    by_shots[f"minus MAML, paired{better}"] = _paired
    columns |= {f"{prefixes[n]}{title}": "number" for n in shots for title in by_shots}
    columns["extra parameters"] = "number"
    columns |= {f"{prefixes[n]}time / MAML": "number" for n in shots}

    def cells(own: dict[Count, Row]) -> list[Cell]:
        def at(count: Count, show: Callable[[Row], Cell]) -> Cell:
            return show(own[count]) if count in own else Cell(MISSING)

        first = next(iter(own.values()))
        key = first.method if first.method != first.title else ""
        return [
            Cell(first.title, notes=(key, first.note or "")),
            Cell(first.optimizer),
            Cell(first.geometry),
            *(at(count, show) for count in shots for show in by_shots.values()),
            _figure(first.extra_parameters, ",.0f"),
            *(at(count, lambda row: _figure(row.relative_to_maml, ".2f")) for count in shots),
        ]

    by_method: dict[Group, dict[str, dict[Count, Row]]] = {group: {} for group in GROUPS}
    for row in rows:
        by_method[row.group].setdefault(row.method, {})[row.shots] = row
    several = sum(map(bool, by_method.values())) > 1
    tables = {
        GROUPS[group] if several else "": Table(columns, [cells(own) for own in some.values()])
        for group, some in by_method.items()
        if some
    }
    return Layout(protocol, columns, tables, _notes(rows))


def _figure(value: float | None, spec: str) -> Cell:
    return Cell(MISSING if value is None else format(value, spec))


def _result(row: Row) -> Cell:
    """Return the figure of a row; one that lost a seed is marked."""
    values = {s.get("seed"): number(s.get(row.measure.name)) for s in row.seeds}
    seeds = {s: value for s, value in values.items() if None not in (s, value)}
    digits = row.measure.digits
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
    gap, digits = row.difference_to_maml, row.measure.digits
    if gap is None or gap["mean"] is None:
        return Cell(MISSING)
    ends = [gap[end] for end in ENDS]
    mean, low, high = ("?" if end is None else f"{end:+z.{digits}f}" for end in ends)
    sure = None not in ends and not ends[1] <= 0 <= ends[2]
    return Cell(f"{mean} [{low}, {high}]", notes=() if sure else ("not significant",))


def _notes(rows: Sequence[Row]) -> list[str]:
    counts: dict[str, dict[Count, int]] = {}
    for row in rows:
        if any(seed.get("seed") is not None for seed in row.seeds):
            counts.setdefault(row.method, {})[row.shots] = len(row.seeds)
    seeds = {count for own in counts.values() for count in own.values()}
    over = "over tasks" if seeds <= {1} else "over tasks and seeds"
    over += " (over tasks where a row has one seed)" if 1 in seeds and len(seeds) > 1 else ""
    notes = [
        f"± and [ ] are 95 % intervals {over}. Bold: the best, and all within its interval.",
        "Minus MAML: the difference on the same test tasks and seeds; it is not significant if its "
        "interval includes zero. Time: of a training iteration, measured during the runs; "
        "the command metamirror cost measures it more precisely.",
    ]
    if any(row.published for row in rows):
        notes.append(OF_THE_PAPER)
    if len(seeds) > 1:
        each = (
            f"{method} {next(iter(own.values()))}"
            if len(set(own.values())) == 1
            else f"{method} " + " and ".join(f"{n} ({shots}-shot)" for shots, n in own.items())
            for method, own in counts.items()
        )
        notes.append(f"Seeds: {', '.join(each)}.")
    for row in rows:
        if row.status != "done":
            mark = "" if row.value is None else f"{SOME_FAILED} "
            notes.append(f"{mark}{row.title}, {row.shots}-shot ({row.status}): {row.reason}")
    said = {row.title: row.note for row in rows if row.note}
    return notes + [f"{title}: {note}." for title, note in said.items()]


def markdown(layout: Layout) -> str:
    """Return the table for a README."""

    def line(cells: Sequence[Cell]) -> str:
        texts = [f"**{cell.text}**" if cell.bold else cell.text for cell in cells]
        return "| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |"

    titles = [Cell(title) for title in layout.columns]
    lines = [layout.protocol, "", line(titles), line([Cell("---")] * len(titles))]
    for title, table in layout.tables.items():
        lines += [line([Cell(f"*{title}*"), *[Cell("")] * (len(titles) - 1)])] if title else []
        lines += map(line, table.rows)
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

    columns = layout.columns
    alignment = "".join("r" if kind == "number" else "l" for kind in columns.values())
    parts = []
    for title, table in layout.tables.items():
        heading = f"\\multicolumn{{{len(columns)}}}{{l}}{{\\textit{{{title}}}}} \\\\"
        parts += [r"\midrule", *([heading] if title else []), *map(line, table.rows)]
    lines = [
        f"% {layout.protocol}",
        f"\\begin{{tabular}}{{{alignment}}}",
        r"\toprule",
        line([Cell(title) for title in columns]),
        *parts,
        r"\bottomrule",
        r"\end{tabular}",
        *(f"% {note}" for note in layout.notes),
    ]
    return "\n".join([*lines, ""])


def as_csv(rows: Sequence[Mapping[str, Any]], measure: str) -> str:
    """Return one line for each row of table.json, unrounded."""
    columns = ["method", "title", "optimizer", "geometry", "group", "shots", measure, "ci95"]
    columns += ["seeds", "published", *(f"difference_to_maml_{end}" for end in ENDS)]
    columns += ["extra_parameters", "seconds_per_iteration", "relative_to_maml", "bold"]
    gaps = [row["difference_to_maml"] or {} for row in rows]
    ends = [{f"difference_to_maml_{end}": gap.get(end) for end in ENDS} for gap in gaps]
    flat = [{**row, **own, "seeds": len(row["seeds"])} for row, own in zip(rows, ends, strict=True)]
    return csv_text([*columns, "status", "reason"], flat)


def csv_text(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Return rows as CSV, with these of their fields."""
    file = io.StringIO()
    writer = csv.DictWriter(file, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def on_screen(columns: dict[str, str], tables: Mapping[str, Table], width: int) -> Screen:
    """Return tables by their titles as one for a terminal, without broad columns if narrow."""
    wide = width >= ROOM * len(columns)
    shown = [wide or kind != "broad" for kind in columns.values()]
    screen = Screen()
    for title, kind in compress(columns.items(), shown):
        screen.add_column(title, justify="right" if kind == "number" else "left", overflow="fold")
    for title, table in tables.items():
        screen.add_section()
        if title:
            screen.add_row(Text(title, "italic"))
        for row in table.rows:
            screen.add_row(*(Text(c.text, "bold" if c.bold else "") for c in compress(row, shown)))
    return screen


def show(table: Mapping[str, Any], console: Console) -> None:
    """Print the table of a comparison on a terminal."""
    layout = lay_out(table["protocol"]["line"], read_rows(table))
    console.print(layout.protocol, markup=False, highlight=False)
    console.print(on_screen(layout.columns, layout.tables, console.width))
    console.print("\n".join(layout.notes), markup=False, highlight=False)


def write_tables(out: Path, table: Mapping[str, Any]) -> None:
    """Write table.md, .csv and .tex into a folder."""
    layout = lay_out(table["protocol"]["line"], read_rows(table))
    texts = {
        "md": markdown(layout),
        "csv": as_csv(table["rows"], measure_of(table).name),
        "tex": latex(layout),
    }
    for kind, content in texts.items():
        write_atomically(out / f"table.{kind}", content.encode())
