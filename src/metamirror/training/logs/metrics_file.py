"""The log that every run has: metrics.jsonl, and timing.jsonl beside it."""

import json
import math
import os
import statistics
import time
from itertools import pairwise
from pathlib import Path

from metamirror.console import warn
from metamirror.core.files import to_json
from metamirror.training.logs.log import Values

METRICS, TIMING = "metrics.jsonl", "timing.jsonl"


class MetricsFile:
    """Writes metrics.jsonl, which holds nothing that a second run would not give again.

    Wall-clock figures go to timing.jsonl. The run continues from a checkpoint of `step`, to which
    the first `keep` bytes of metrics.jsonl belong.
    """

    def __init__(self, run: Path, keep: int, step: int):
        self.run = run
        self._metrics = os.open(run / METRICS, os.O_RDWR | os.O_CREAT, 0o666)
        if (size := os.fstat(self._metrics).st_size) < keep:
            warn(f"{run / METRICS} has {size} bytes, and had {keep} when the checkpoint was made")
        os.ftruncate(self._metrics, min(size, keep))
        os.lseek(self._metrics, 0, os.SEEK_END)
        self._timing = os.open(run / TIMING, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        self._began, self._first = time.monotonic(), step

    def add(self, step: int, values: Values) -> None:
        """Write one line of metrics, and one of timing."""
        _write(self._metrics, {"step": step, **values}, self.run / METRICS)
        seconds = time.monotonic() - self._began
        rate = (step - self._first) / max(seconds, 1e-9)
        timing = {"step": step, "seconds": round(seconds, 3), "steps_per_second": round(rate, 3)}
        _write(self._timing, timing, self.run / TIMING)

    def image(self, name: str, png: bytes) -> None:
        """Leave images out: the file holds figures."""

    def settle(self) -> int:
        """Flush the metrics to disk; return their length, for a checkpoint to remember."""
        os.fsync(self._metrics)
        return os.fstat(self._metrics).st_size

    def close(self, error: BaseException | None = None) -> None:
        os.close(self._metrics)
        os.close(self._timing)


def seconds_per_iteration(run: Path) -> float | None:
    """Return the median time of an iteration, over the intervals between two lines of timing.

    Validation falls into some of the intervals; a clock that goes back has been started again.
    """
    lines = _timing(run / TIMING)
    intervals: list[float] = [
        (after["seconds"] - before["seconds"]) / (after["step"] - before["step"])
        for before, after in pairwise(lines)
        if after["step"] > before["step"] and after["seconds"] > before["seconds"]
    ]
    if intervals:
        return statistics.median(intervals)
    rates = [line["steps_per_second"] for line in lines if line["steps_per_second"]]
    return 1 / statistics.median(rates) if rates else None


def _timing(file: Path) -> list[dict[str, float]]:
    """Return the readable lines: a full disk or a loss of power leaves half a line."""
    found = []
    for line in file.read_text(errors="replace").splitlines() if file.is_file() else []:
        try:
            entry = json.loads(line)
            known = {k: float(entry[k]) for k in ("step", "seconds", "steps_per_second")}
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            continue
        if all(map(math.isfinite, known.values())):
            found.append(known)
    return found


def _write(descriptor: int, line: Values, path: Path) -> None:
    content = (to_json(line, indent=None) + "\n").encode()
    try:
        while content:
            content = content[os.write(descriptor, content) :]
    except OSError as error:
        raise OSError(error.errno, f"cannot write: {error.strerror}", str(path)) from error
