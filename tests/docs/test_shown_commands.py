"""Every `metamirror ...` that README and docs show is one that the command line takes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from metamirror.cli.main import parse

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
SHOWN = re.compile(r"^    (?:torchrun .*-m )?metamirror(?: (.*?))?(?:  +#.*)?$", re.MULTILINE)


def commands() -> dict[str, str]:
    """Each command once, with the page that shows it first."""
    found: dict[str, str] = {}
    for page in PAGES:
        lines_joined = re.sub(r"\\\n\s*", "", page.read_text())
        for words in SHOWN.findall(lines_joined):
            found.setdefault(words, page.name)
    return found


COMMANDS = commands()


def test_commands_are_found():
    assert len(COMMANDS) > 30
    assert any(words.startswith("compare") and "--recipes authors" in words for words in COMMANDS)
    assert any("--resume" in words and "--tasks-per-step 8" in words for words in COMMANDS)


@pytest.mark.parametrize("words", COMMANDS)
def test_a_command_that_is_shown_is_taken(words, monkeypatch):
    monkeypatch.chdir(ROOT)  # presets are named from there
    given = shlex.split(words)
    if "--resume" in given and "--config" not in given:
        given += ["--method", "maml"]  # a run that is there would know
    assert callable(parse(given))
