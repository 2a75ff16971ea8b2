"""docs/playground.md shows what results/playground.json says, and a picture that loads quickly."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = " ".join((ROOT / "docs" / "playground.md").read_text().split())
FOUND = json.loads((ROOT / "results" / "playground.json").read_text())


@pytest.mark.parametrize("data", ["omniglot", "glyphs"])
@pytest.mark.parametrize("prepared", [False, True])
def test_the_accuracies_are_those_that_were_measured(data, prepared):
    rows = [
        row
        for row in FOUND["recognised"]
        if (row["start"], row["data"], row["prepared"]) == ("glyphs-blockiaf", data, prepared)
    ]
    assert len(rows) == 1
    assert rows[0]["tasks"] == 100
    assert f"{rows[0]['accuracy']:.1f} ± {rows[0]['ci95']:.1f} %" in PAGE


def test_the_times_are_those_that_were_measured():
    alone = next(row for row in FOUND["alone"] if row["start"] == "glyphs-blockiaf")
    together = FOUND["together"]
    assert f"answered in {alone['median_ms']} ms" in PAGE
    assert f"all answered within {together['seconds']:.1f} s" in PAGE
    assert together["answers"] == together["clients"] == 20
    assert all(row["median_ms"] <= 500 for row in FOUND["alone"])


def test_the_picture_is_there_and_small():
    assert 10_000 < (ROOT / "docs" / "playground.png").stat().st_size < 200_000
