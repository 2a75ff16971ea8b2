"""Killed at any moment, a command that is started again ends as if nothing had happened.

A killed comparison is in `tests/experiments/comparison`; the campaign kills one fifteen times.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.killing import kill_adding, kill_checkpointing, kill_training
from tests.faults.killing_workers import kill_workers

pytestmark = pytest.mark.slow


def test_training_survives_twenty_kills_at_random_moments(tmp_path: Path):
    kill_training(tmp_path, kills=20)


@pytest.mark.parametrize("first", [0, 7])
def test_training_survives_kills_before_its_changes_to_the_disk(first: int, tmp_path: Path):
    assert kill_checkpointing(tmp_path, first)["kills"] > 5


def test_a_comparison_survives_the_death_of_its_workers(tmp_path: Path):
    kill_workers(tmp_path, kills=4)


def test_what_is_installed_is_the_old_set_or_the_new_one(tmp_path: Path):
    kill_adding(tmp_path, late=3)
