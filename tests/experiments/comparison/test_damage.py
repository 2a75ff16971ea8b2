"""What a comparison survives: damaged files, runs that fail late, words with brackets in them."""

from __future__ import annotations

import io
import json
import math
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.live import Live

from metamirror.cli import experiments
from metamirror.cli.main import main
from metamirror.experiments.comparison import commands
from metamirror.experiments.comparison.commands import Command
from metamirror.experiments.comparison.jobs import Job, failed, read_record
from metamirror.experiments.comparison.status_board import StatusBoard
from metamirror.experiments.comparison.table import Row, make_table
from metamirror.experiments.comparison.worker import do, no_answer
from metamirror.report import tables
from metamirror.training.logs.metrics_file import seconds_per_iteration
from metamirror.training.task_results import TaskResult
from tests.runs import small

GRID = (
    *("compare", "--data", "sinusoid", "--methods", "maml,metasgd", "--no-controls"),
    *("--seeds", "1", "--shots", "3", "--queries", "3", "--steps", "1", "--width", "8"),
    *("--iterations", "4", "--tasks-per-step", "2", "--validate-every", "0", "--test-tasks", "4"),
    *("--vectorize", "False"),
)


def rows_of(out: Path) -> dict[str, dict[str, Any]]:
    found = json.loads((out / "table.json").read_text())["rows"]
    return {row["method"]: row for row in found}


def figures(out: Path) -> dict[str, tuple[float, float, str]]:
    return {m: (row["mse"], row["ci95"], row["status"]) for m, row in rows_of(out).items()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> tuple[Path, list[dict[str, Any]]]:
    """A finished comparison, and how its report was asked for."""
    out = tmp_path_factory.mktemp("damage") / "out"
    asked: list[dict[str, Any]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiments, "write_report", lambda folder, **options: asked.append(options))
        assert main([*GRID, "--out", str(out), "--data-dir", str(out / "data")]) == 0
    return out, asked


def test_the_report_looks_for_the_data_where_they_are(whole):
    """Without them it could not look at any geometry."""
    out, asked = whole
    assert asked == [{"data_dir": out / "data"}]


def test_what_is_damaged_is_done_again_and_one_bad_run_stops_no_other(whole, capsys):
    out, _ = whole
    before = figures(out)
    # The results of one run are cut short, the record of the other holds nothing.
    (results,) = (out / "cells" / "maml-3shot-seed0" / "evaluations").glob("*.jsonl")
    results.write_text(results.read_text()[:40])
    (out / "records" / "metasgd-3shot-seed0.json").write_text("{")
    assert main([*GRID, "--out", str(out)]) == 0
    assert figures(out) == before

    cell = out / "cells" / "metasgd-3shot-seed0"
    (cell / "config.json").write_text('{"method"')
    (out / "records" / "metasgd-3shot-seed0.json").unlink()
    capsys.readouterr()
    assert main([*GRID, "--out", str(out)]) == 0
    assert "metasgd-3shot-seed0 failed" in capsys.readouterr().err
    rows = rows_of(out)
    assert (rows["metasgd"]["status"], rows["maml"]["status"]) == ("failed", "done")
    assert "config.json is not valid JSON" in rows["metasgd"]["reason"]
    assert figures(out)["maml"] == before["maml"]
    assert "| failed |" in (out / "table.md").read_text()


def test_half_a_line_of_a_clock_is_left_out(tmp_path: Path):
    lines = [f'{{"step": {i}, "seconds": {i / 2}, "steps_per_second": 2.0}}' for i in (10, 20, 30)]
    (tmp_path / "timing.jsonl").write_text("\n".join([lines[0], '{"step": 1', *lines[1:], "[]"]))
    assert seconds_per_iteration(tmp_path) == pytest.approx(0.5)


PICTURES = {"method": "gradnet", "data": "glyphs", "width": 4, "vectorize": False}


@pytest.mark.parametrize("changes", [{}, PICTURES], ids=["regression", "classification"])
def test_a_run_whose_errors_are_not_finite_has_failed(changes: dict[str, Any], tmp_path: Path):
    """Steps that are not finite were skipped, all of them: there is nothing to evaluate."""
    config = small(lr=1e38, iterations=2, on_nonfinite="skip", validate_every=0, **changes)
    job = Job("maml-3shot-seed0", "run", "cells/a", asdict(config), tasks=4, out=str(tmp_path))
    with pytest.raises(ValueError, match=r"learned nothing: .* of all 2 steps was not finite"):
        do(job)


def test_accuracies_of_answers_that_are_no_numbers_are_no_result():
    """A classifier's accuracy is finite all the same: 0.00 ± 0.00."""
    lost, wrong = TaskResult((math.nan,), (0.0,)), TaskResult((5.0,), (0.0,))
    assert no_answer([lost, lost])
    assert not no_answer([lost, wrong])


def test_a_trial_that_failed_does_not_change_what_was_chosen_without_it(tmp_path: Path):
    """The runs of the row have begun, and would be refused with another step size."""
    search = ("--search", "0.03,0.0001", "--search-iterations", "30", "--search-tasks", "4")
    words = [*GRID, "--methods", "maml", *search, "--out", str(tmp_path)]
    obstacle = tmp_path / "search" / "maml-3shot-seed0-lr0.03"
    obstacle.parent.mkdir()
    obstacle.touch()
    assert main(words) == 0
    chosen = json.loads((tmp_path / "search.json").read_text())["rows"][0]
    assert (chosen["lr"], "is a file" in chosen["scores"][0]["reason"]) == (0.0001, True)
    before = figures(tmp_path)
    obstacle.unlink()
    assert main(words) == 0
    assert figures(tmp_path) == before


def test_a_method_of_the_users_own_is_compared_in_processes_that_import_it(own_method, tmp_path):
    words = (*GRID, "--methods", f"maml,{own_method}", "--out", str(tmp_path / "out"))
    assert main([*words, "--import", "own_module"]) == 0
    row = rows_of(tmp_path / "out")[own_method]
    assert (row["title"], row["status"]) == ("My own", "done")


def test_a_job_runs_by_hand_and_writes_its_own_record(tmp_path: Path):
    """Its file is all that another machine needs; a module that is not there is a reason."""
    config = asdict(small(iterations=1, validate_every=0))
    for name, imports, reason in (("good", [], None), ("bad", ["no_such_module"], "no module")):
        job = Job(name, "run", f"cells/{name}", config | {"imports": imports}, tasks=2)
        job = replace(job, out=str(tmp_path))
        job.describe()
        command = [sys.executable, "-m", "metamirror.experiments.comparison.worker"]
        ended = subprocess.run([*command, str(job.description)], check=False)
        record = read_record(job)
        assert record is not None
        assert (ended.returncode == 0) is record.done is (reason is None)
        assert (reason or "") in (record.reason or "")


# From records to the table


def row(label: str, job: Job) -> Row:
    return Row(label, label, "GD", "none", "relative", 3, jobs={0: job})


PROTOCOL = {"classes": {}, "metric": {"metric": "mse"}, "line": "sinusoid."}


def test_where_every_run_has_failed_the_table_still_says_what_of():
    job = Job("maml-3shot-seed0", "run", "cells/a", {}, tasks=4)
    records = {job.name: failed("RuntimeError: no memory\nfor 1 GB")}
    table = make_table(PROTOCOL, [row("maml", job)], records)
    assert (table["rows"][0]["mse"], table["rows"][0]["status"]) == (None, "failed")
    layout = tables.lay_out(table["protocol"]["line"], tables.read_rows(table))
    for text in (tables.markdown(layout), tables.latex(layout)):
        assert "MSE" in text
        # A line break would end a comment in LaTeX, and an item in Markdown.
        assert "seed 0: RuntimeError: no memory for 1 GB\n" in text


def test_a_record_whose_results_are_incomplete_counts_for_nothing(tmp_path: Path):
    job = Job("maml-3shot-seed0", "run", "cells/a", {}, tasks=2, out=str(tmp_path))
    record = {"job": job.identity, "found": {"mse": 1.0, "ci95": 0.1}, "tasks_file": "a.jsonl"}
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / f"{job.name}.json").write_text(json.dumps(record))
    line = '{"task": 0, "loss": [1.0]}\n'
    for content, known in ((2 * line, True), (line, False), ("", False), (line + "{", False)):
        (tmp_path / "a.jsonl").write_text(content)
        assert (read_record(job) is not None) is known


# The board


def test_whatever_a_run_says_stands_on_the_board_as_it_is(tmp_path: Path):
    """Words of torch and paths have brackets, which rich reads as markup."""
    words = "RuntimeError: [enforce fail at alloc_cpu.cpp:121] no memory [/dev/shm]"
    job = Job("maml-1shot-seed0", "run", "cells/a", {})
    screen = io.StringIO()
    console = Console(file=screen, width=160, force_terminal=True, color_system=None)
    with Command(tmp_path) as command, StatusBoard("compare", [job], {}, command) as board:
        board.live = Live(console=console, auto_refresh=False)
        board.live.start()
        board.started(job, "node 3")
        assert commands.working(tmp_path)[0].running == {job.name: "node 3"}
        board.ended(job, failed(words))
    assert f"failed: {words}" in screen.getvalue()
