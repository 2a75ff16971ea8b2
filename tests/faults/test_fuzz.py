"""A short slice of the campaign: every parser of outside input, a few dozen inputs each."""

from __future__ import annotations

from pathlib import Path

import pytest

from serving import served
from tests.faults import of_data, of_pages, of_runs, of_words
from tests.faults.fuzzing import SECONDS, Target, fuzz

pytestmark = pytest.mark.slow

TARGETS = [*of_runs.TARGETS, *of_data.TARGETS, *of_words.TARGETS, *of_pages.TARGETS]
INPUTS = 30
"""Of a target of weight 1."""


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_what_comes_from_outside_is_read_or_refused(target: Target, tmp_path: Path):
    tally = fuzz(target, round(INPUTS * target.weight), tmp_path)
    assert tally.slowest < SECONDS
    # If everything is refused at the door, nothing behind it was tried.
    assert len(tally.outcomes) > 1 or target.named == ()


def test_bytes_on_the_socket_are_answered_or_dropped(tmp_path: Path):
    with served() as server:
        fuzz(of_pages.raw_target(server), 40, tmp_path)
        assert server.ask("/api/starts")[0] == 200
