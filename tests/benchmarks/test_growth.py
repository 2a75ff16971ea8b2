"""The slopes that the benchmark of growth states."""

from __future__ import annotations

import pytest

from growth import memory_mode, slopes


def test_a_line_has_its_slope_and_a_power_its_exponent():
    line = slopes([1, 2, 5, 20], [3 + 0.5 * x for x in (1, 2, 5, 20)])
    assert (line["per_unit"], line["at_zero"]) == pytest.approx((0.5, 3.0))
    assert 0 < line["log_log"] < 1
    assert slopes([16, 32, 64], [x**2 for x in (16, 32, 64)])["log_log"] == pytest.approx(2)


def test_the_memory_mode_is_judged_at_twenty_steps():
    sweeps = {
        "steps, 84x84": {"x": [1, 5, 20], "peak_mb": [200, 400, 1200]},
        "steps, 84x84, memory mode": {"x": [1, 5, 20], "peak_mb": [180, 200, 300]},
    }
    assert memory_mode(sweeps) == {
        "lean_20_against_lean_5": 1.5,
        "lean_20_against_usual_5": 0.75,
        "usual_20_against_usual_5": 3.0,
    }
