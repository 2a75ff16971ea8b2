"""What docs/playground.md promises was measured, and its image loads quickly."""

from __future__ import annotations

from pathlib import Path

from metamirror.core.files import read_json

ROOT = Path(__file__).parents[2]


def test_what_was_promised_was_measured():
    found = read_json(ROOT / "results" / "playground.json")
    assert all(row["median_ms"] <= 500 for row in found["alone"])
    assert found["together"]["answers"] == found["together"]["clients"] == 20


def test_the_image_is_there_and_small():
    assert 10_000 < (ROOT / "docs" / "playground.png").stat().st_size < 200_000
