"""Methods of the user's own, from a module that a command is told to import."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import metamirror as mm
from metamirror.cli.main import main
from metamirror.training.config import load_config

MODULE = """
from dataclasses import replace
from metamirror.methods import METHODS

METHODS["mine"] = replace(METHODS["metasgd"], key="mine", title="A method of my own")
"""
SMALL = (
    *("train", "--data", "sinusoid", "--method", "mine", "--iterations", "2", "--steps", "1"),
    *("--tasks-per-step", "2", "--val-tasks", "2"),
)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch):
    """A folder with the module, as the current one; what it registers is forgotten."""
    (tmp_path / "mymethods.py").write_text(MODULE)
    (tmp_path / "broken.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*(p for p in sys.path if p)])
    yield
    forget()


def forget() -> None:
    mm.METHODS.pop("mine", None)
    sys.modules.pop("mymethods", None)


def test_a_method_of_ones_own_works_in_every_command(capsys):
    given = ("--import", "mymethods")
    assert main([*SMALL, "--out", "run", *given]) == 0
    assert load_config(Path("run")).imports == ("mymethods",)
    for words in (
        ("methods", "--json"),
        ("evaluate", "run", "--tasks", "2"),
        ("inspect", "run", "--tasks", "1", "--points", "1"),
        ("convergence", "run", "--tasks", "2", "--out", "figure"),
        ("train", "--resume", "--out", "run", "--iterations", "3"),
        ("report", "."),
    ):
        forget()
        assert main([*words, *given]) == 0, capsys.readouterr().err
    assert load_config(Path("run")).imports == ("mymethods",)
    assert "cannot be inspected" not in Path("report.html").read_text("utf-8")


@pytest.mark.parametrize(
    "words",
    [("evaluate", "run"), ("inspect", "run"), ("train", "--resume", "--out", "run")],
    ids=lambda words: words[0],
)
def test_a_configuration_imports_nothing_but_says_what_to_add(words, capsys):
    assert main([*SMALL, "--out", "run", "--import", "mymethods"]) == 0
    forget()
    capsys.readouterr()
    assert main(list(words)) == 2
    err = capsys.readouterr().err
    assert "the run was trained with --import mymethods: add --import mymethods" in err
    assert err.count("\n") == 1
    assert "mymethods" not in sys.modules


def test_a_configuration_from_before_imports_is_read(capsys):
    assert main([*SMALL, "--out", "run", "--method", "maml"]) == 0
    values = json.loads(Path("run/config.json").read_text())
    del values["imports"]
    Path("run/config.json").write_text(json.dumps(values))
    assert main(["evaluate", "run", "--tasks", "2"]) == 0


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nowhere", "there is no module 'nowhere' in"),
        ("mymethods.py", "without .py"),
        ("broken", "importing broken failed: ZeroDivisionError: division by zero"),
    ],
)
def test_a_module_that_cannot_be_imported_is_named(name: str, words: str, capsys):
    assert main(["methods", "--import", name]) == 2
    err = capsys.readouterr().err
    assert words in err
    assert err.count("\n") == 1
