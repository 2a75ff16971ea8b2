"""Links of the pages that mkdocs does not see; files and targets that any page names."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OUTSIDE = sorted(ROOT.glob("*.md"))
PAGES = sorted([*OUTSIDE, *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
TARGET = re.compile(r"^([\w./-]+)(?: [\w./-]+)*:(?!=)", re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = HEADING.findall(page.read_text())
    return {re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-") for words in headings}


@pytest.mark.parametrize("page", OUTSIDE, ids=lambda page: page.name)
def test_what_a_page_links_to_is_there(page):
    for link in LINK.findall(page.read_text()):
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_every_make_target_that_is_shown_exists():
    shown = {
        word
        for page in PAGES
        for line in re.findall(r"(?:^    |`)make ([^`#\n]+)", page.read_text(), re.MULTILINE)
        for word in shlex.split(line)
        if "=" not in word
    }
    assert {"quickstart", "test", "docs", "wheel-test", "range", "faults"} <= shown
    assert shown <= set(TARGET.findall((ROOT / "Makefile").read_text()))


def test_every_script_and_preset_that_is_shown_exists():
    shown = {
        word
        for page in PAGES
        for word in re.findall(
            r"\b((?:benchmarks|tools|configs|examples|tests)/[\w/.-]+\.(?:py|toml))",
            page.read_text(),
        )
    }
    assert len(shown) > 20
    assert sorted(word for word in shown if not (ROOT / word).is_file()) == []
