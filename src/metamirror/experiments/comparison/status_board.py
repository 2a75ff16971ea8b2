"""How a comparison goes: a live table on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from metamirror.console import say
from metamirror.core.metrics import metric_in
from metamirror.experiments.comparison.commands import Command
from metamirror.experiments.comparison.jobs import Job, Record
from metamirror.experiments.comparison.table import plus_minus

SECONDS_BETWEEN_LINES = 30.0
SECONDS_BETWEEN_LOOKS = 1.0


class StatusBoard:
    """One line a job: waiting, how far it has come and where, its result, or why it failed.

    `records` are those of jobs that were done before, by name; those that end are added. Other
    commands see through `command` what runs.
    """

    def __init__(
        self, title: str, jobs: Sequence[Job], records: dict[str, Record], command: Command
    ):
        self.title, self.records, self.command = title, records, command
        self.places: dict[str, str] = {}
        self.states = {job.name: outcome(records.get(job.name)) for job in jobs}
        self.running: dict[str, tuple[Job, float]] = {}
        self.durations: list[float] = []
        self.left = sum(job.name not in records for job in jobs)
        self.last = time.monotonic()
        self.live: Live | None = None
        if sys.stderr.isatty():
            self.live = Live(console=Console(stderr=True), auto_refresh=False)
        elif self.left:
            done = len(jobs) - self.left
            before = f", {done} are finished already" if done else ""
            say(f"{title}: {self.left} of {len(jobs)} to do{before}")

    def __enter__(self) -> "StatusBoard":
        if self.live is not None:
            self.live.start()
        return self

    def started(self, job: Job, place: str) -> None:
        self.running[job.name] = job, time.monotonic()
        self.places[job.name] = place
        self.command.show(self.places)

    def lost(self, job: Job, reason: str) -> None:
        self._end(job)
        self.states[job.name] = f"waiting again: its process {reason}"
        if self.live is None:
            say(f"{job.name}: its process {reason}; it is run again from its last checkpoint")
        self._draw()

    def _end(self, job: Job) -> float | None:
        """Take a job off the running ones; return how long it ran, if it did."""
        began = self.running.pop(job.name, None)
        if self.places.pop(job.name, None) is not None:
            self.command.show(self.places)
        return None if began is None else time.monotonic() - began[1]

    def ended(self, job: Job, record: Record) -> None:
        self.records[job.name] = record
        if (seconds := self._end(job)) is not None:
            self.durations.append(seconds)
        self.states[job.name] = outcome(record)
        self.left -= 1
        if self.live is None:
            say(f"{job.name}: {outcome(record)} ({self._remaining()})")
        self._draw()

    def tick(self) -> None:
        self.command.tick()
        now = time.monotonic()
        pause = SECONDS_BETWEEN_LINES if self.live is None else SECONDS_BETWEEN_LOOKS
        if now - self.last < pause:
            return
        self.last = now
        for name, (job, _) in self.running.items():
            self.states[name] = last_line(job.file("log")) or "starting"
            if self.live is None:
                say(f"{name} on {self.places[name]}: {self.states[name]}")
        self._draw()

    def _remaining(self) -> str:
        if not self.left or not self.durations:
            return f"{self.left} left"
        each = sum(self.durations) / len(self.durations)
        seconds = each * self.left / max(1, len(self.running) + 1)
        return f"{self.left} left, about {seconds / 60:.0f} min"

    def _draw(self) -> None:
        if self.live is None:
            return

        # What runs comes first and what waits last: a terminal may be too low for all.
        def order(line: tuple[str, str]) -> tuple[bool, ...]:
            name, state = line
            return name not in self.running, not state, not state.startswith("failed")

        table = Table("run", "state", "where", title=f"{self.title}: {self._remaining()}")
        for name, state in sorted(self.states.items(), key=order):
            # What a process says may hold brackets, which rich would take for its own.
            place = escape(self.places.get(name, ""))
            table.add_row(name, escape(state) or "waiting", place, style=None if state else "dim")
        self.live.update(table, refresh=True)

    def __exit__(self, *error: object) -> None:
        if self.live is not None:
            self.live.stop()


def outcome(record: Record | None) -> str:
    """Return a record in a few words."""
    if record is None:
        return ""
    if record.found is None:
        return f"failed: {record.reason}"
    measure = metric_in(record.found)
    if measure.name not in record.found:
        return "done"
    value, half = record.found[measure.name], record.found["ci95"]
    return f"{measure.name} {plus_minus(measure, value, half)}"


def last_line(file: Path) -> str:
    """Return the last line of a log, without reading all of it."""
    try:
        with file.open("rb") as log:
            log.seek(max(0, file.stat().st_size - 500))
            return log.read().decode(errors="replace").splitlines()[-1]
    except (FileNotFoundError, IndexError):
        return ""
