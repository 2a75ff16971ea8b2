"""How long it takes to start, measured in turns."""

from __future__ import annotations

import startup


def test_help_takes_at_most_half_of_what_importing_torch_takes():
    lines = startup.measure(rounds=3)["lines"]
    assert lines[startup.TORCH]["of_torch"][0] == 1
    assert lines["metamirror --help"]["of_torch"][0] <= 0.5
    assert lines['python -c "import metamirror"']["of_torch"][0] <= 0.5
