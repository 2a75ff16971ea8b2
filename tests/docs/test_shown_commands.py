"""Every `metamirror ...` that README and docs show is one that the command line takes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from metamirror.cli import parse

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])
# Indented, possibly behind torchrun, and over as many lines as end in a backslash.
SHOWN = re.compile(r"^    (?:torchrun .*?-m )?metamirror (.*(?:\\\n.*)*)", re.MULTILINE)


def commands() -> dict[str, str]:
    """Each command once, with the page that shows it first."""
    found: dict[str, str] = {}
    for page in PAGES:
        text = re.sub(r"(torchrun .*)\\\n\s*", r"\1", page.read_text())
        text = re.sub(r"(torchrun .*)\\\n\s*", r"\1", text)
        for words in SHOWN.findall(text):
            plain = words.replace("\\\n", " ").partition("  #")[0].strip()
            found.setdefault(" ".join(plain.split()), page.name)
    return found


COMMANDS = commands()


def test_there_are_commands():
    assert len(COMMANDS) > 40
    assert any(words.startswith("train --config configs/mini") for words in COMMANDS)


@pytest.mark.parametrize("words", COMMANDS)
def test_a_command_that_is_shown_is_taken(words, monkeypatch):
    monkeypatch.chdir(ROOT)  # presets are named from there
    assert callable(parse(shlex.split(words)))
