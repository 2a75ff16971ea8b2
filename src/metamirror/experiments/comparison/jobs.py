"""A piece of work for another process, and what is on record of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from metamirror.storage.atomic import read_json, write_json
from metamirror.training.evaluate import read_tasks

RECORDS = "records"
Work = Literal["run", "nearest mean of pixels", "nearest mean of features"]


@dataclass(frozen=True)
class Job:
    """What is to be done. Equal jobs have equal results.

    Attributes:
        name: what it is called on record and on the screen.
        work: train a run and judge it, or judge a nearest class mean.
        folder: of the run, below that of the comparison; for pixels, none.
        config: of the run: a `RunConfig` as a dict.
        split: of the tasks on which it is judged.
        tasks: how many of them; 0 to train only.
    """

    name: str
    work: Work
    folder: str | None
    config: dict[str, Any]
    split: str = "test"
    tasks: int = 600


@dataclass(frozen=True)
class Place:
    """Where work is done.

    Attributes:
        out: the folder of the comparison.
        device: as in `train`.
        data_dir: as in `train`.
    """

    out: Path
    device: str = "auto"
    data_dir: Path | None = None


@dataclass(frozen=True)
class Record:
    """How a job ended.

    Attributes:
        job: which.
        found: its figures; None if it failed.
        tasks_file: the results of single tasks, below the comparison's folder.
        reason: why it failed.
    """

    job: dict[str, Any]
    found: dict[str, Any] | None = None
    tasks_file: str | None = None
    reason: str | None = None


def log_file(out: Path, name: str) -> Path:
    """Where a job's own words go."""
    return out / RECORDS / f"{name}.log"


def write_record(out: Path, name: str, record: Record) -> None:
    """Beside the runs, not in them: a run folder holds a run and nothing else."""
    (out / RECORDS).mkdir(parents=True, exist_ok=True)
    write_json(out / RECORDS / f"{name}.json", asdict(record))


def failed(job: Job, reason: str) -> Record:
    """The record of a job that has failed. A reason stands in tables, and has one line there."""
    return Record(asdict(job), reason=" ".join(reason.split()))


def read_record(out: Path, job: Job) -> Record | None:
    """The record of this very job; none, if it has not been done, or what it left is damaged."""
    try:
        record = Record(**read_json(out / RECORDS / f"{job.name}.json"))
        kinds = ((record.found, dict), (record.tasks_file, str), (record.reason, str))
        if any(value is not None and not isinstance(value, kind) for value, kind in kinds):
            return None
        if record.job != asdict(job):
            return None
        if record.tasks_file is not None and len(read_tasks(out / record.tasks_file)) != job.tasks:
            return None
    except (TypeError, ValueError, OSError):
        # What is not there or cannot be read is done again, and holds nobody up.
        return None
    return record


def done(record: Record | None) -> bool:
    """Whether a job need not be done again. One that failed is tried again."""
    return record is not None and record.found is not None
