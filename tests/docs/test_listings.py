"""What README and docs show in Python runs, from the top of a page to its end."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

import metamirror as mm
from metamirror.data.glyphs import draw
from metamirror.testing import check_method
from tests.docs.listings import listings, run

ROOT = Path(__file__).parents[2]
PAGES = {
    page.relative_to(ROOT).as_posix().removeprefix("docs/"): page
    for page in sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
    if listings(page)
}


@pytest.fixture(autouse=True)
def _readers_machine(tmp_path, monkeypatch):
    """Pages speak of files that their reader has, leave others behind, and add methods."""
    monkeypatch.chdir(tmp_path)
    for i, name in enumerate(("sun1", "sun2", "key1", "key2", "cat1", "cat2", "dog1", "new1")):
        Image.fromarray(draw("cd"["key" in name], seed=i)[0]).save(f"{name}.png")
    before = set(mm.METHODS)
    yield
    for added in set(mm.METHODS) - before:
        del mm.METHODS[added]


def test_the_pages_that_teach_have_listings():
    wanted = "README index how-it-works settings data model losses geometry gotchas deploy"
    assert {f"{name}.md" for name in wanted.split()} <= set(PAGES)


@pytest.mark.parametrize("page", sorted(set(PAGES) - {"geometry.md"}))
def test_the_listings_of_a_page_run(page):
    run(PAGES[page])


def test_the_worked_example_is_a_method_like_the_others():
    check_method(run(PAGES["geometry.md"]).METHOD)
