"""docs/playground.md shows what results/playground.json says, and a picture that loads quickly."""

from __future__ import annotations

from metamirror.files import read_json
from playground_figures import PAGE, filled

FOUND = read_json(PAGE.parents[1] / "results" / "playground.json")


def test_the_figures_are_those_that_were_measured():
    page = PAGE.read_text()
    assert filled(page, FOUND) == page, "run: python benchmarks/playground_figures.py --write"


def test_what_was_promised_was_measured():
    assert all(row["median_ms"] <= 500 for row in FOUND["alone"])
    assert FOUND["together"]["answers"] == FOUND["together"]["clients"] == 20


def test_the_picture_is_there_and_small():
    assert 10_000 < PAGE.with_name("playground.png").stat().st_size < 200_000
