"""`metamirror quickstart`: all methods, equally long, in the time that is given."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from metamirror.cli import experiments
from metamirror.cli.experiments import commands_after, program
from metamirror.cli.main import main
from metamirror.experiments import quickstart
from metamirror.experiments.quickstart import SHOWN
from metamirror.report import page


@pytest.mark.slow
def test_all_methods_stand_in_one_table(tmp_path: Path, capsys, monkeypatch):
    """As little as it ever does, one iteration each, on a smaller network."""
    small = replace(quickstart.BASE, width=4, image_size=16, steps=1, vectorize=False)
    monkeypatch.setattr(quickstart, "BASE", small)
    monkeypatch.setattr(quickstart, "FEWEST_TASKS", 3)
    asked = []

    def write_report(folder: Path, **options) -> Path:
        asked.append(options)
        return page.write_report(folder, **options)

    monkeypatch.setattr(experiments, "write_report", write_report)
    out = tmp_path / "quickstart"
    assert main(["quickstart", "--minutes", "0.01", "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    table = json.loads((out / "table.json").read_text())
    rows = {row["method"]: row for row in table["rows"]}
    assert set(SHOWN) < set(rows)
    assert {"nearest-mean-pixels", "nearest-mean-features"} < set(rows)
    assert {row["status"] for row in rows.values()} == {"done"}
    assert table["protocol"]["data"] == "glyphs"
    for method in SHOWN:
        run = out / rows[method]["seeds"][0]["run"]
        assert json.loads((run / "config.json").read_text())["iterations"] == 1
        assert 0 <= rows[method]["accuracy"] <= 100
    # Trained with the same optimiser as blockIAF, as all are: not trained twice.
    twin, own = rows["metasgd-as-blockiaf"], rows["metasgd"]
    assert (twin["accuracy"], twin["seeds"]) == (own["accuracy"], own["seeds"])
    assert (out / "report.html").is_file()
    # The time is up, and geometries are looked at no longer than was set aside.
    assert asked == [{"inspect_seconds": quickstart.SECONDS_AT_THE_END}]
    assert len([line for line in shown.splitlines() if line.startswith(f"  {program()} ")]) == 3

    capsys.readouterr()
    assert main(["quickstart", "--out", str(out)]) == 2
    assert "is not empty" in capsys.readouterr().err


def test_the_next_commands_take_runs_that_there_are():
    """Whatever has failed; and a shell takes a folder's name for one word."""

    def row(method: str, *runs: str | None) -> dict:
        return {"method": method, "seeds": [{"run": run} for run in runs]}

    rows = [row("maml", "cells/maml"), row("blockiaf"), row("gradnet"), row("pixels", None)]
    inspect, evaluate, compare = commands_after({"rows": rows}, Path("my runs"))
    assert inspect == "inspect 'my runs/cells/maml'"
    assert evaluate.startswith("evaluate 'my runs/cells/maml' --steps 10")
    assert compare.startswith("compare --data glyphs")
    assert commands_after({"rows": [row("maml"), row("pixels", None)]}, Path("q")) == [compare]


def test_the_program_is_called_as_it_can_be(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """After `make quickstart`, `metamirror` is in a venv that no shell knows of."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.executable", str(tmp_path / ".venv/bin/python"))
    monkeypatch.chdir(tmp_path)
    assert program() == ".venv/bin/python -m metamirror"
    (tmp_path / "metamirror").touch(mode=0o755)
    assert program() == "metamirror"


def test_minutes_are_above_nothing(tmp_path: Path, capsys):
    assert main(["quickstart", "--minutes", "0", "--out", str(tmp_path / "out")]) == 2
    assert "minutes is 0" in capsys.readouterr().err
