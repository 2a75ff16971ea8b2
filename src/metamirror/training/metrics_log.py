"""The log of a run: metrics, timing, and TensorBoard where asked for."""

import importlib.util
import json
import math
import os
import statistics
import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from metamirror.console import warn
from metamirror.core.files import to_json

METRICS, TIMING = "metrics.jsonl", "timing.jsonl"


class MetricsLog:
    """Writes metrics.jsonl, which holds nothing that a second run would not give again.

    Wall-clock figures go to timing.jsonl. The run continues from a checkpoint of `step`, to which
    the first `keep` bytes of metrics.jsonl belong.
    """

    def __init__(self, run: Path, keep: int, step: int, tensorboard: bool):
        self.run = run
        self._events: Any = None
        if tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            # What a killed process wrote after its last checkpoint is taken out of the curves.
            self._events = SummaryWriter(str(run / "tensorboard"), purge_step=step + 1)
        self._metrics = os.open(run / METRICS, os.O_RDWR | os.O_CREAT, 0o666)
        if (size := os.fstat(self._metrics).st_size) < keep:
            warn(f"{run / METRICS} has {size} bytes, and had {keep} when the checkpoint was made")
        os.ftruncate(self._metrics, min(size, keep))
        os.lseek(self._metrics, 0, os.SEEK_END)
        self._timing = os.open(run / TIMING, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        self._began, self._first = time.monotonic(), step

    def __enter__(self) -> "MetricsLog":
        return self

    def add(self, step: int, values: Mapping[str, float | int | None]) -> None:
        """Write one line of metrics, and one of timing."""
        _write(self._metrics, {"step": step, **values}, self.run / METRICS)
        seconds = time.monotonic() - self._began
        rate = (step - self._first) / max(seconds, 1e-9)
        timing = {"step": step, "seconds": round(seconds, 3), "steps_per_second": round(rate, 3)}
        _write(self._timing, timing, self.run / TIMING)
        if self._events is not None:
            for name, value in values.items():
                if value is not None:
                    self._events.add_scalar(name, value, step)

    def settle(self) -> int:
        """Flush the metrics to disk; return their length, for a checkpoint to remember."""
        os.fsync(self._metrics)
        return os.fstat(self._metrics).st_size

    def __exit__(self, *error: object) -> None:
        os.close(self._metrics)
        os.close(self._timing)
        if self._events is not None:
            self._events.close()


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


def _write(descriptor: int, line: Mapping[str, float | int | None], path: Path) -> None:
    content = (to_json(line, indent=None) + "\n").encode()
    try:
        while content:
            content = content[os.write(descriptor, content) :]
    except OSError as error:
        raise OSError(error.errno, f"cannot write: {error.strerror}", str(path)) from error


def check_tensorboard(wanted: bool) -> None:
    """Refuse to write TensorBoard events where that is not installed."""
    if wanted and importlib.util.find_spec("tensorboard") is None:
        raise ValueError("TensorBoard is not installed: pip install 'metamirror[tensorboard]'")
