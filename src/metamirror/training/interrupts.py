"""Ctrl-C and SIGTERM, answered between two steps."""

import signal
import threading
from contextlib import ExitStack
from types import FrameType
from typing import Self

from metamirror.console import say


class InterruptedRun(KeyboardInterrupt):
    """A run that was asked to stop, and has saved what it has; its code is the exit code."""

    def __init__(self, number: int):
        super().__init__()
        self.code = 128 + number


class Interrupts(ExitStack):
    """Remembers the first signal; a second one acts as it always does."""

    received: int | None = None

    def __enter__(self) -> Self:
        # Python lets only the main thread listen.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self.callback(signal.signal, number, signal.signal(number, self._hear))
        return self

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self.received = number
        self.close()
        say("stopping when this step is done; press Ctrl-C again to stop immediately")
