"""Programs that take turns: times, ratios, memory, and what happens when one fails."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from metamirror.experiments.paired_timing import (
    Program,
    ProgramError,
    cpu_seconds,
    open_workers,
    ratio,
    take_turns,
)

MEGABYTE = 1 << 20


def sleeper(seconds: float, megabytes: int = 0):
    held = b"x" * (megabytes * MEGABYTE)
    return lambda: time.sleep(seconds) or len(held)


def mistaken():
    raise ValueError("3 is not 4")


def failing():
    return lambda: 1 / 0


def killed():
    return lambda: os.kill(os.getpid(), signal.SIGKILL)


def test_the_interval_covers_the_true_ratio_as_often_as_it_says():
    """Times whose ratio is 0.5 in the median, under a drift that both share."""
    random = np.random.default_rng(0)
    hits = 0
    for trial in range(60):
        drift = random.uniform(1, 3, 15)
        ours, theirs = (random.lognormal(0, 0.1, 15) for _ in range(2))
        low, high = ratio(0.5 * ours * drift, theirs * drift, seed=trial).interval
        assert low <= high < 0.75
        hits += low <= 0.5 <= high
    assert hits >= 50


def test_a_drift_that_both_share_does_not_move_the_ratio():
    drift = np.linspace(1, 10, 11)
    found = ratio(3 * drift, 2 * drift)
    assert found.median == pytest.approx(1.5)
    assert found.interval == pytest.approx((1.5, 1.5))


@pytest.mark.slow
def test_programs_take_turns_in_changing_order_and_own_their_memory():
    order = []
    programs = [
        Program("light", partial(sleeper, 0.02)),
        Program("heavy", partial(sleeper, 0.06, megabytes=300)),
    ]
    with open_workers(programs) as (light, heavy):
        seconds = take_turns(
            [light, heavy],
            4,
            turn_seconds=0.1,
            after_turn=lambda worker: order.append(worker.program.name),
        )
    assert order == ["light", "heavy", "heavy", "light"] * 2
    assert {name: len(turns) for name, turns in seconds.items()} == {"light": 4, "heavy": 4}
    # A sleep may last longer on a busy machine, never shorter.
    assert 1 <= light.repeats <= 5
    assert 1 <= heavy.repeats <= 2
    assert min(seconds["light"]) >= 0.02
    assert min(seconds["heavy"]) >= 0.06
    # Who sleeps computes nothing.
    assert max(light.cpu_seconds + heavy.cpu_seconds) < 0.02
    assert heavy.peak_mb - light.peak_mb == pytest.approx(300, abs=40)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("prepare", "kind", "words"),
    [
        (mistaken, ValueError, ": 3 is not 4"),
        (failing, ProgramError, "failed: ZeroDivisionError: division by zero"),
        (killed, ProgramError, "was killed by SIGKILL; .* memory"),
    ],
)
def test_a_program_that_fails_is_reported_with_its_name(prepare, kind, words):
    with (
        pytest.raises(kind, match=f"broken.*{words}") as caught,
        open_workers([Program("broken", prepare)]) as workers,
    ):
        take_turns(workers, 1)
    assert len(str(caught.value).splitlines()) == 1
    assert not multiprocessing.active_children()


def test_no_rounds_are_refused():
    with pytest.raises(ValueError, match="rounds is 0; at least one"):
        take_turns([], 0)


def busy_child(pipe) -> None:
    began = time.process_time()
    while time.process_time() < began + 0.3:
        pass
    pipe.send("done")
    pipe.recv()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
def test_the_time_of_children_counts():
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    child = context.Process(target=busy_child, args=(there,), daemon=True)
    child.start()
    try:
        here.recv()
        assert cpu_seconds() - time.process_time() > 0.25
    finally:
        child.kill()
        child.join()
