"""Jobs under Slurm, sent by submitit."""

import contextlib
import io
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metamirror.core.extras import import_extra
from metamirror.core.files import write_atomically
from metamirror.experiments.comparison import worker
from metamirror.experiments.comparison.jobs import DESCRIPTIONS, Job
from metamirror.experiments.comparison.launchers.launcher import Launcher, refuse_less_than_one
from metamirror.experiments.comparison.launchers.worker_process import environment

SECONDS_BETWEEN_LOOKS = 2.0
SECONDS_TO_APPEAR = 10.0
"""How long a record may take to be seen here after its job has ended: folders on a network lag."""


@dataclass(frozen=True)
class SlurmOptions:
    """The options of the Slurm launcher, as sbatch has them."""

    partition: str | None = None
    time: str = "24:00:00"  # how long a job may take; what is cut off is sent again.
    cpus: int = 1  # cores of a job, and threads of its process.
    gpus: int | None = None  # GPUs of a job.
    mem: str | None = None  # memory of a job, such as 8G.
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    exclude: str | None = None  # nodes that are left out, such as node[3-5].
    jobs: int = 100  # how many wait or run in the queue at a time.


class SlurmLauncher(Launcher):
    """Sends jobs to Slurm, one batch job each. The nodes share the comparison's folder.

    Batch jobs outlive the command that sent them; one that is started later takes them over.
    """

    def __init__(self, options: SlurmOptions):
        super().__init__()
        refuse_less_than_one(cpus=options.cpus, jobs=options.jobs)
        if options.gpus is not None and options.gpus < 0:
            raise ValueError(f"gpus is {options.gpus}; at least 0")
        self._submitit = import_extra("submitit", "slurm")
        if self._submitit.SlurmExecutor.affinity() < 0:
            raise ValueError("srun is not found: run this where Slurm's commands are")
        self.options, self.room = options, options.jobs
        self._minutes = minutes(options.time)
        self._queue = _Queue()

    def submit(self, job: Job) -> "_Attempt":
        sent = job.description.with_suffix(".slurm")
        folder = Path(job.out, DESCRIPTIONS, "slurm")
        number = sent.read_text().strip() if sent.is_file() else ""
        if not number or number not in self._queue.look():
            number = self._send(job, folder)
            write_atomically(sent, number.encode())
            self._queue.add(number)
        handle = self._submitit.SlurmJob(folder=folder, job_id=number)
        return _Attempt(job, handle, self._queue)

    def _send(self, job: Job, folder: Path) -> str:
        words = (str(job.description), os.getcwd(), self.options.cpus)
        try:
            # submitit prints what it raises as well.
            with contextlib.redirect_stderr(io.StringIO()):
                return str(self._executor(folder).submit(run_job, *words).job_id)
        except self._submitit.core.utils.FailedJobError as error:
            reason = " ".join(str(error).split())
            raise ValueError(
                f"Slurm takes no job ({reason}): change the launcher's options, or try again; what "
                f"is in the queue goes on, and the same command takes it over"
            ) from error

    def _executor(self, folder: Path) -> Any:
        executor = self._submitit.SlurmExecutor(folder=folder)
        own = {
            "partition": self.options.partition,
            "gpus_per_node": self.options.gpus,
            "mem": self.options.mem,
            "account": self.options.account,
            "qos": self.options.qos,
            "constraint": self.options.constraint,
            "exclude": self.options.exclude,
        }
        executor.update_parameters(
            job_name="metamirror",
            time=self._minutes,
            cpus_per_task=self.options.cpus,
            stderr_to_stdout=True,
            **{name: value for name, value in own.items() if value is not None},
        )
        return executor


class _Attempt:
    """A batch job."""

    def __init__(self, job: Job, handle: Any, queue: "_Queue"):
        self._job, self._handle, self._queue = job, handle, queue
        self._gone: float | None = None

    def place(self) -> str | None:
        nodes = self._queue.look().get(self._handle.job_id)
        return f"{nodes}, Slurm job {self._handle.job_id}" if nodes else None

    def ended(self) -> str | None:
        if self._handle.job_id in self._queue.look():
            return None
        self._gone = self._gone or time.monotonic()
        waited = time.monotonic() - self._gone
        if not self._job.file("json").exists() and waited < SECONDS_TO_APPEAR:
            return None
        return f"ended as Slurm job {self._handle.job_id} and left no record"

    def stop(self) -> None:
        self._handle.cancel(check=False)


class _Queue:
    """This user's jobs in Slurm's queue, asked for now and then.

    From squeue: sacct, which submitit asks, needs accounting, which not every cluster keeps.
    """

    def __init__(self) -> None:
        self._nodes: dict[str, str] = {}
        self._looked = 0.0

    def look(self) -> dict[str, str]:
        """Return the nodes of each job by its number; "" while it waits."""
        if time.monotonic() - self._looked > SECONDS_BETWEEN_LOOKS:
            command = ["squeue", "--noheader", "--me", "--format", "%i %N"]
            found = subprocess.run(command, capture_output=True, text=True, check=False)
            # Where the controller does not answer, nothing is known to have changed.
            if found.returncode == 0:
                lines = (line.partition(" ") for line in found.stdout.splitlines())
                self._nodes = {number: nodes.strip() for number, _, nodes in lines}
            self._looked = time.monotonic()
        return self._nodes

    def add(self, number: str) -> None:
        """Take note of a job that was just sent."""
        self._nodes[number] = ""


def run_job(description: str, folder: str, threads: int) -> int:
    """Run a job on its node, in a process of its own; the worker's exit code is returned."""
    command = [sys.executable, "-m", worker.__name__, description]
    with subprocess.Popen(command, cwd=folder, env=environment(threads)) as process:
        # Ninety seconds are left. submitit would have Slurm requeue the job, which kills it before
        # it has saved. Instead the worker saves and ends, and the launcher sends the job again.
        signal.signal(signal.SIGUSR2, lambda number, frame: process.send_signal(number))
        return process.wait()


def minutes(time: str) -> int:
    """Return a time of Slurm's in minutes, rounded up.

    >>> minutes("08:00:00"), minutes("1-00:30:00"), minutes("90")
    (480, 1470, 90)
    """
    found = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", time)
    if found is None:
        raise ValueError(f"time is {time!r}; give minutes, HH:MM:SS or D-HH:MM:SS")
    days, *rest = found.groups()
    parts = [int(part) for part in rest if part is not None]
    if days is not None:
        parts += [0] * (3 - len(parts))
    elif len(parts) == 1:
        parts = [0, *parts, 0]
    hours, mins, seconds = ([0] * (3 - len(parts)) + parts)[-3:]
    total = 1440 * int(days or 0) + 60 * hours + mins + -(-seconds // 60)
    if total < 1:
        raise ValueError(f"time is {time!r}; give at least a minute")
    return total
