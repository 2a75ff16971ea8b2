"""Where the jobs of a comparison run: on this machine, or wherever a launcher sends them."""

from collections.abc import Sequence
from typing import Protocol

from metamirror.experiments.comparison.jobs import Job, Record


class Board(Protocol):
    """Something that shows how the jobs go."""

    def started(self, job: Job) -> None:
        """Take note that a job has begun."""

    def ended(self, job: Job, record: Record) -> None:
        """Take note that a job is done, or has failed."""

    def tick(self) -> None:
        """Take note that some time has passed."""


class Launcher(Protocol):
    """Something that runs jobs. A job that fails stops no other."""

    def run(self, jobs: Sequence[Job], board: Board) -> None:
        """Run jobs until each has left its record; raise `InterruptedRun` if asked to stop.

        A job's worker writes its record. The launcher writes it for a worker that died.
        """
