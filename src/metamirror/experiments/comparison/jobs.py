"""One training or evaluation to run, and the record that it leaves."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from metamirror.core.files import read_json, to_json, write_atomically, write_json
from metamirror.training.config import RunConfig
from metamirror.training.task_results import read_tasks

RECORDS, DESCRIPTIONS = "records", "jobs"
PLACE = ("out", "run", "device", "data_dir", "log")
Work = Literal["run", "nearest mean of pixels", "nearest mean of features", "convergence"]


@dataclass(frozen=True)
class Job:
    """One training or evaluation. All of it is JSON, so that it can run anywhere.

    Jobs that are equal, wherever they run, have equal results. By hand, from its file:

        python -m metamirror.experiments.comparison.worker DIR/jobs/NAME.json
    """

    name: str  # what it is called in records and on the screen
    work: Work
    folder: str | None  # of the run, below `out`; pixels have none
    config: dict[str, Any]  # of the run: a `RunConfig` as a dict
    split: str = "test"  # of the tasks on which it is evaluated
    tasks: int = 600  # how many of them; 0 to train only
    out: str = "."  # the folder of the comparison
    device: str = "auto"
    data_dir: str | None = None
    log: str = ""  # trackers that get the figures of its run
    options: dict[str, Any] = field(default_factory=dict)  # what else its work depends on
    run: str | None = None  # the run folder, where it is not `folder` below `out`

    @property
    def run_folder(self) -> Path | None:
        """Its run folder; pixels have none."""
        if self.folder is None:
            return None
        return Path(self.out, self.folder) if self.run is None else Path(self.run)

    @property
    def description(self) -> Path:
        """The file that describes it."""
        return Path(self.out, DESCRIPTIONS, f"{self.name}.json")

    def describe(self) -> None:
        """Write the file that describes it, unless it is there."""
        text = to_json(asdict(self)) + "\n"
        file = self.description
        if not file.is_file() or file.read_text("utf-8", errors="replace") != text:
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(file, text.encode())

    def file(self, ending: str) -> Path:
        """Return a file of its own; beside the runs, since a run folder holds a run only."""
        return Path(self.out, RECORDS, f"{self.name}.{ending}")

    @property
    def identity(self) -> dict[str, Any]:
        """Everything that decides its result, as JSON has it."""
        own = {key: value for key, value in asdict(self).items() if key not in PLACE}
        # Records from before there were options have none.
        own |= {} if own.pop("options") == {} else {"options": self.options}
        return dict(json.loads(to_json(own)))


@dataclass(frozen=True)
class Record:
    """How a job ended."""

    found: dict[str, Any] | None = None  # its figures; None if it failed
    tasks_file: str | None = None  # the results of single tasks, below the comparison's folder
    reason: str | None = None  # why it failed

    @property
    def done(self) -> bool:
        """Whether the job need not run again; one that failed is tried again."""
        return self.found is not None


def failed(reason: str) -> Record:
    """Return the record of a job that failed; its reason has one line, since tables show it."""
    return Record(reason=" ".join(reason.split()))


def write_record(job: Job, record: Record) -> Record:
    """Write how a job ended, and return it."""
    job.file("json").parent.mkdir(parents=True, exist_ok=True)
    write_json(job.file("json"), {"job": job.identity, **asdict(record)})
    return record


def read_record(job: Job) -> Record | None:
    """Return the record of this very job; None if it has not run, or if what it left is damaged."""
    try:
        values = read_json(job.file("json"))
        # Settings that are newer than the record are filled in.
        usual = json.loads(to_json(asdict(RunConfig(method=""))))
        then, now = (
            {**own, "config": usual | own["config"]} for own in (values.pop("job"), job.identity)
        )
        record = Record(**values)
        kinds = ((record.found, dict), (record.tasks_file, str), (record.reason, str))
        fits = then == now and all(v is None or isinstance(v, kind) for v, kind in kinds)
        if fits and record.tasks_file:
            fits = len(read_tasks(Path(job.out, record.tasks_file))) == job.tasks
        return record if fits else None
    except (TypeError, ValueError, KeyError, AttributeError, OSError):
        # What cannot be read is done again, and stops nothing else.
        return None
