"""Ctrl-C and SIGTERM, answered between two steps."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

from metamirror.console import say

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class InterruptedRun(KeyboardInterrupt):
    """A run that was asked to stop, and has saved what it has.

    Attributes:
        code: the exit code, 128 and the signal's number.
    """

    def __init__(self, number: int):
        super().__init__()
        self.code = 128 + number


class Interrupts:
    """Remembers the first signal; a second one acts as it always does."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        # Python lets only the main thread listen.
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._hear) for number in SIGNALS}
        return self

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self.received = number
        self._restore()
        say("stopping when this step is done; press Ctrl-C again to stop immediately")

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def __exit__(self, *error: object) -> None:
        self._restore()
