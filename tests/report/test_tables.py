"""One table in four languages."""

from __future__ import annotations

import csv
import io

from rich.console import Console

from metamirror.experiments.comparison.table import with_bold
from metamirror.report import tables


def row(method: str, accuracy: float | None, ci95: float | None = 1.0, **changes):
    return {
        "method": method,
        "title": method.upper(),
        "optimizer": "GD",
        "geometry": "R&D_1 | none",
        "group": "paper",
        "shots": 1,
        "accuracy": accuracy,
        "ci95": ci95,
        "seeds": []
        if accuracy is None
        else [{"seed": 0, "accuracy": accuracy, "ci95": ci95, "run": "a"}],
        "published": None,
        "difference_to_maml": {"mean": 1.5, "low": -0.25, "high": 3.25},
        "extra_parameters": 12_345,
        "seconds_per_iteration": 0.5,
        "relative_to_maml": 1.25,
        "bold": False,
        "status": "done",
        "reason": None,
        "note": None,
        **changes,
    }


def table(*rows):
    return {"protocol": {"line": "glyphs; 5-way; 10 % noise."}, "rows": list(rows)}


def layout(*rows):
    found = table(*rows)
    return tables.lay_out(found["protocol"]["line"], tables.read_rows(found))


FAILED = {"status": "failed", "reason": "seed 0: not finite at step 3"}


def bold(*rows) -> list[str]:
    return [r.method for r in with_bold(tables.read_rows(table(*rows))) if r.bold]


def test_the_best_and_all_within_its_interval_are_bold():
    rows = [row("a", 50.0, 9.0), row("b", 52.0, 1.5), row("c", 50.6, 0.1), row("d", 50.4, 5.0)]
    assert bold(*rows) == ["b", "c"]


def test_each_number_of_shots_has_its_own_best():
    assert bold(row("a", 50.0), row("b", 40.0), row("b", 70.0, shots=5)) == ["a", "b"]


def test_what_failed_is_not_bold_and_what_is_less_is_better_for_errors():
    assert bold(row("a", None, None, **FAILED), row("b", 99.0, **FAILED), row("c", 40.0)) == ["c"]
    errors = [row("a", None, mse=0.5), row("b", None, 0.1, mse=0.3), row("c", None, mse=0.39)]
    assert bold(*errors) == ["b", "c"]


def test_a_difference_that_rounds_to_zero_has_no_minus():
    gap = {"mean": -0.001, "low": -0.004, "high": 0.002}
    text = tables.markdown(layout(row("a", 50.0, difference_to_maml=gap)))
    assert "+0.00 [+0.00, +0.00]" in text


def test_notes_have_no_marks_that_a_page_would_show():
    assert not any("`" in note for note in layout(row("a", 50.0)).notes)


def test_markdown():
    text = tables.markdown(
        layout(
            row("maml", 48.701, 1.838, bold=True, published="48.70 ± 1.84"),
            row("ecml", None, None, difference_to_maml=None, relative_to_maml=None, **FAILED),
            row("anil", 40.0, 1.0, group="control", **FAILED),
        )
    )
    lines = text.splitlines()
    assert lines[0] == "glyphs; 5-way; 10 % noise."
    assert lines[2].startswith(
        "| method | lower-level optimiser | loss geometry | accuracy, % | in"
    )
    assert lines[4] == "| *In the paper* |" + "  |" * 7
    assert lines[5] == (
        r"| MAML | GD | R&D_1 \| none | **48.70 ± 1.84** | 48.70 ± 1.84 | +1.50 [-0.25, +3.25] "
        "| 12,345 | 1.25 |"
    )
    assert "| failed | – | – | 12,345 | – |" in lines[6]
    assert lines[7] == "| *Controls* |" + "  |" * 7
    assert lines[8].startswith("| ANIL |")
    assert "40.00 ± 1.00 † |" in lines[8]
    assert "- ECML, 1-shot (failed): seed 0: not finite at step 3" in lines
    assert "- † ANIL, 1-shot (failed): seed 0: not finite at step 3" in lines


def notes(*rows) -> list[str]:
    return [line[2:] for line in tables.markdown(layout(*rows)).splitlines() if line[:2] == "- "]


def seeds(*numbers: int | None) -> list[dict]:
    return [{"seed": n, "accuracy": 50.0, "ci95": 1.0, "run": None} for n in numbers]


def test_figures_of_the_paper_come_with_what_they_are():
    assert tables.OF_THE_PAPER not in notes(row("maml", 50.0))
    assert tables.OF_THE_PAPER in notes(row("maml", 50.0, published="48.70 ± 1.84"))


RUNS = {"maml": (0, 1), "ecml": (0,)}


def test_how_many_seeds_each_row_has_is_told_where_they_differ():
    maml, ecml = row("maml", 50.0, seeds=seeds(0, 1)), row("ecml", 50.0, seeds=seeds(0))
    pixels = row("pixels", 50.0, seeds=seeds(None))
    first, *others = notes(maml, ecml, pixels)
    assert "over tasks and seeds (over tasks where a row has one seed)" in first
    assert "Seeds: maml 2, ecml 1." in others
    first, *others = notes(maml, row("maml", 50.0, shots=5, seeds=seeds(0)))
    assert "Seeds: maml 2 (1-shot) and 1 (5-shot)." in others
    both = [row(m, 50.0, shots=k, seeds=seeds(*own)) for m, own in RUNS.items() for k in (1, 5)]
    assert "Seeds: maml 2, ecml 1." in notes(*both)
    for same in ([ecml, pixels], [maml, pixels]):
        assert not [note for note in notes(*same) if "Seeds:" in note or "one seed" in note]


def test_shots_are_columns_side_by_side():
    text = tables.markdown(layout(row("maml", 40.0), row("maml", 60.0, shots=5)))
    header, _, line = text.splitlines()[2:5]
    assert header.index("1-shot accuracy") < header.index("5-shot accuracy")
    assert line.index("40.00") < line.index("60.00")
    assert sum(line.startswith("| MAML |") for line in text.splitlines()) == 1
    assert "in the paper" not in header


def test_latex_escapes_what_it_must():
    text = tables.latex(layout(row("maml", 48.7, 1.8, bold=True)))
    assert r"{R\&D\_1 | none}" in text
    assert r"\textbf{48.70 $\pm$ 1.80}" in text
    assert "% glyphs; 5-way; 10 % noise." in text
    (line,) = [line for line in text.splitlines() if line.startswith("{MAML}")]
    columns = text[text.index("{lll") + 1 :].partition("}")[0]
    assert line.count(" & ") == len(columns) - 1


def test_csv_is_not_rounded():
    found = table(row("maml", 48.70123, 1.5), row("ecml", None, None, **FAILED))
    text = tables.as_csv(found["rows"], "accuracy")
    first, second = csv.DictReader(io.StringIO(text))
    assert float(first["accuracy"]) == 48.70123
    assert float(first["difference_to_maml_low"]) == -0.25
    assert (second["accuracy"], second["status"]) == ("", "failed")


def test_a_narrow_terminal_does_without_the_geometry():
    for width, shown in ((80, False), (160, True)):
        console = Console(width=width, file=io.StringIO())
        tables.show(table(row("maml", 48.7)), console)
        text = console.file.getvalue()
        assert "48.70 ± 1.00" in text
        assert ("R&D" in text) == shown
        assert max(map(len, text.splitlines())) <= width


def test_a_table_of_an_earlier_version_is_grouped_by_the_registry():
    """It said which rows are controls, and no more."""
    labels = ("maml", "gradnet:rho=0", "own", "nearest-mean-pixels")
    rows = [row(label, 50.0) for label in labels]
    for one in rows:
        del one["group"]
        one["kind"] = "control" if "mean" in one["method"] else "method"
    groups = [r.group for r in tables.read_rows(table(*rows))]
    assert groups == ["paper", "relative", "own", "control"]
    assert list(layout(*rows).tables) == ["In the paper", "Relatives", "Your own", "Controls"]
    assert list(layout(rows[0]).tables) == [""]
