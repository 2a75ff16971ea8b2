"""The same command gives the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.repeating import GLYPHS, repeat

pytestmark = pytest.mark.slow


def test_the_same_command_twice_gives_the_same_bits(tmp_path: Path):
    found = repeat(tmp_path, "blockiaf", GLYPHS, tasks=2)
    assert found["same_bits"]
    assert found["same_bits_with_two_threads"]
    # With as many tasks as threads, each task is computed by one of them.
    assert found["largest_difference_of_1_and_2_threads"] == 0
