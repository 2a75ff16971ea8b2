"""Inputs by the thousand: each ends in a result or a named error, soon, and does nothing else."""

from __future__ import annotations

import contextlib
import io
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import HypothesisException, HypothesisWarning

from tests.faults.watching import watched

CHUNK = 2_000
"""Inputs after which hypothesis begins anew, since it remembers all that it has tried."""
SECONDS = 5.0
"""Beyond which an input has made the program hang; of its own time, however busy the machine is."""


class HangError(BaseException):
    """Not an `Exception`: nothing may take it for one of the named errors."""


@dataclass(frozen=True)
class Target:
    """Something that reads what comes from outside.

    Attributes:
        name: of what is read.
        inputs: what it is given.
        read: reads one of them, in a folder of its own; a word for the table, if there is more to
            say than that it was read.
        named: errors that tell a user what is wrong.
        allowed: deeds that belong to the reading itself; see `watching`.
        weight: its share of the campaign.
    """

    name: str
    inputs: st.SearchStrategy[Any]
    read: Callable[[Path, Any], str | None]
    named: tuple[type[Exception], ...] = (ValueError, OSError)
    allowed: tuple[str, ...] = ()
    weight: float = 1.0


@dataclass
class Tally:
    """How many inputs ended how.

    Attributes:
        inputs: that were tried.
        outcomes: how often each end was reached.
        slowest: seconds of the slowest one.
    """

    inputs: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0

    def described(self) -> dict[str, Any]:
        return {
            "inputs": self.inputs,
            "outcomes": dict(self.outcomes.most_common()),
            "slowest_seconds": round(self.slowest, 2),
        }


def fuzz(target: Target, count: int, folder: Path) -> Tally:
    """Gives a target `count` inputs, and fails with the smallest one that does harm.

    The same count gives the same inputs.
    """
    tally = Tally()
    # What is imported on the way would be compiled and written beside its source.
    sys.dont_write_bytecode = True
    while tally.inputs < count:
        before = tally.inputs
        _attack(target, min(CHUNK, count - before), folder, tally)
        if tally.inputs == before:
            raise AssertionError(f"{target.name} has no inputs")
    return tally


def _attack(target: Target, count: int, folder: Path, tally: Tally) -> None:
    @seed(tally.inputs)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    @given(target.inputs)
    def attack(value: Any) -> None:
        tally.inputs += 1
        begun = time.process_time()
        with (
            contextlib.redirect_stderr(io.StringIO()),
            watched(folder, target.allowed) as watch,
            _no_hang(),
        ):
            try:
                end = target.read(folder, value) or "read"
            except HypothesisException:
                raise
            except target.named as error:
                if not str(error).strip():
                    raise AssertionError(f"{type(error).__name__} without a word") from error
                end = f"refused: {type(error).__name__}"
        tally.slowest = max(tally.slowest, time.process_time() - begun)
        tally.outcomes[end] += 1
        assert not watch.seen, watch.seen

    with warnings.catch_warnings():
        # Of an input that does harm: it is shown, however long it is.
        warnings.simplefilter("ignore", HypothesisWarning)
        attack()


@contextlib.contextmanager
def _no_hang() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise HangError(f"more than {SECONDS:g} s of processor time")

    # Not SIGALRM, by which pytest counts its own time.
    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
