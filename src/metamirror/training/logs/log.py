"""What a log is, and several of them as one."""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from metamirror.console import warn

Values = Mapping[str, float | int | None]


class Log(Protocol):
    """Something that takes the figures of a run as they come."""

    def add(self, step: int, values: Values) -> None:
        """Take the figures of one step."""

    def image(self, name: str, png: bytes) -> None:
        """Take an image."""

    def close(self, error: BaseException | None = None) -> None:
        """Write what is left to write, and by what the run ended early, if it did."""


@dataclass(frozen=True)
class Opening:
    """What a log is opened with."""

    folder: Path  # of the run
    step: int  # from which the run goes on, -1 for none; what was logged after it is logged again
    config: dict[str, Any]  # the run's settings
    versions: dict[str, Any]  # of the code

    @property
    def title(self) -> str:
        """The run, in words."""
        return self.folder.resolve().name


class Logs(ExitStack):
    """Several logs as one. A tracker that fails is left out from then on: the run goes on.

    `first`, the metrics file of a run, is no tracker: what it raises is raised.
    """

    def __init__(self, trackers: Mapping[str, Log], first: Log | None = None):
        super().__init__()
        self._first, self._others = first, dict(trackers)
        if first is not None:
            self.callback(first.close)
        for name in trackers:
            self.push(lambda kind, error, trace, name=name: self._tell(name, "close", error))

    def add(self, step: int, values: Values) -> None:
        """Give every log the figures of one step."""
        if self._first is not None:
            self._first.add(step, values)
        for name in list(self._others):
            self._tell(name, "add", step, values)

    def image(self, name: str, png: bytes) -> None:
        """Give every log an image."""
        if self._first is not None:
            self._first.image(name, png)
        for other in list(self._others):
            self._tell(other, "image", name, png)

    def _tell(self, name: str, method: str, *arguments: Any) -> None:
        if name not in self._others:
            return
        try:
            getattr(self._others[name], method)(*arguments)
        except Exception as error:
            del self._others[name]
            warn(f"{name} gets no more of this run, which goes on: {' '.join(str(error).split())}")
