"""Jobs as tasks of a Ray cluster that is already running."""

import math
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from metamirror.console import warn
from metamirror.core.extras import import_extra
from metamirror.experiments.comparison.jobs import Job
from metamirror.experiments.comparison.launchers import carried
from metamirror.experiments.comparison.launchers.launcher import (
    SECONDS_TO_SAVE,
    Launcher,
    refuse_less_than_one,
)
from metamirror.experiments.comparison.launchers.worker_process import WorkerProcess

SECONDS_BETWEEN_LOOKS = 0.1
SECONDS_BETWEEN_CARRIES = 5.0
SECONDS_BETWEEN_KNOCKS = 5.0
SECONDS_TO_ANSWER = 10.0
SECONDS_TO_SEND = 30.0
"""For one piece of news, files included: Ray itself would wait for ever for what is lost."""
RAYS_PATIENCE = "RAY_gcs_rpc_server_reconnect_timeout_s"


@dataclass(frozen=True)
class RayOptions:
    """The options of the Ray launcher."""

    address: str = "auto"  # HOST:PORT of the head; auto is $RAY_ADDRESS, or one of this machine.
    cpus: int = 1  # cores of a job, and threads of its process.
    gpus: float = 0.0  # GPUs of a job; half a one lets two jobs share it.
    jobs: int = 100  # how many wait or run in the cluster at a time.
    shared: bool = True  # whether the nodes share the comparison's folder.


class RayLauncher(Launcher):
    """Runs jobs on a Ray cluster, each in a worker process beside its Ray task.

    Where the nodes share no folder, a job's files are sent there, and come back whenever there is
    a new checkpoint.
    """

    def __init__(self, options: RayOptions):
        super().__init__()
        refuse_less_than_one(cpus=options.cpus, jobs=options.jobs)
        if not 0 <= options.gpus < math.inf:
            raise ValueError(f"gpus is {options.gpus}; at least 0")
        # A try takes most of a minute, and Ray would make twenty: auto may be a dead cluster.
        os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", "1")
        self._ray = import_extra("ray", "ray")
        self.options, self.room = options, options.jobs
        try:
            _knock(options.address)
            self._ray.init(address=options.address, log_to_driver=False, logging_level="ERROR")
        except (OSError, ValueError, RuntimeError) as error:
            raise ValueError(
                f"there is no Ray cluster at {options.address!r}: start one with "
                f"`ray start --head`, or give address=HOST:PORT ({' '.join(str(error).split())})"
            ) from error
        self.callback(self._leave)
        self._head = _Head(self._ray.get_runtime_context().gcs_address)
        self._warn_of_no_room()
        # A lost task is run again by the launcher, which knows how far the job has come.
        self._task = self._ray.remote(run_job).options(
            num_cpus=options.cpus, num_gpus=options.gpus, max_retries=0, num_returns="streaming"
        )

    def _leave(self) -> None:
        """Leave the cluster; one that does not answer any more is not waited for."""
        leaving = threading.Thread(target=self._ray.shutdown, daemon=True)
        leaving.start()
        leaving.join(SECONDS_TO_ANSWER)

    def _warn_of_no_room(self) -> None:
        """Say so if jobs would wait for a node that is not there: one may still join."""
        wanted = {"CPU": self.options.cpus, "GPU": self.options.gpus}
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        if not any(all(n.get(what, 0) >= many for what, many in wanted.items()) for n in nodes):
            warn(
                f"no node of the cluster has the {self.options.cpus} CPUs and "
                f"{self.options.gpus:g} GPUs of a job: jobs wait until one joins; or give fewer "
                f"by cpus= and gpus="
            )

    def submit(self, job: Job) -> "_Attempt":
        files = None if self.options.shared else carried.send(job)
        news = self._task.remote(asdict(job), files, os.getcwd(), self.options.cpus)
        return _Attempt(self._ray, job, news, self._head)


def _knock(address: str) -> None:
    """Raise OSError where nothing listens: Ray itself would ask for most of a minute."""
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS", "")
    if address.startswith("ray://"):
        raise ValueError("through ray://, Ray's client streams no results")
    host, _, port = address.rpartition(":")
    # Anything else is Ray's to read.
    if host and "/" not in host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), SECONDS_TO_ANSWER).close()


class _Head:
    """The head of the cluster, asked now and then whether it is there."""

    def __init__(self, address: str):
        self._address, self._asked = address, 0.0
        self._answered = time.monotonic()
        # One that comes back in time is Ray's business. Later, Ray ends this process by itself.
        self._patience = float(os.environ.get(RAYS_PATIENCE, 60)) / 2

    def check(self) -> None:
        """Refuse to wait for a head that is lost, and its cluster with it."""
        if time.monotonic() - self._asked < SECONDS_BETWEEN_KNOCKS:
            return
        try:
            _knock(self._address)
            self._answered = time.monotonic()
        except OSError as error:
            if (silent := time.monotonic() - self._answered) > self._patience:
                raise ValueError(
                    f"the head of the Ray cluster, {self._address}, has not answered for "
                    f"{silent:.0f} s: start a cluster and give the same command again, which keeps "
                    f"what is finished"
                ) from error
        self._asked = time.monotonic()


class _Attempt:
    """A task of the cluster, which sends news: where it runs, files, and how it ended."""

    def __init__(self, ray: Any, job: Job, news: Any, head: _Head):
        self._ray, self._job, self._news, self._head = ray, job, news, head
        self._place: str | None = None
        self._how: str | None = None

    def place(self) -> str | None:
        return self._place

    def ended(self) -> str | None:
        self._head.check()
        while self._how is None and self._ray.wait([self._news], timeout=0)[0]:
            try:
                news = self._ray.get(next(self._news), timeout=SECONDS_TO_SEND)
            except StopIteration:
                self._how = "left no record that can be read"
            except self._ray.exceptions.RayError as error:
                first = (str(error).strip() or type(error).__name__).splitlines()[0]
                self._how = f"was lost by Ray ({first})"
            else:
                self._place = news.get("place", self._place)
                self._how = news.get("how")
                if "files" in news:
                    carried.take_in(self._job, news["files"])
        return self._how

    def stop(self) -> None:
        self._ray.cancel(self._news)


_workers: dict[tuple[str | None, int, str], WorkerProcess] = {}
"""The worker of this process, kept for the next task: its Ray process runs many."""


def run_job(
    description: dict[str, Any], files: bytes | None, folder: str, threads: int
) -> Iterator[dict[str, Any]]:
    """Run one job on a node of the cluster; yield where, then files that changed, then how."""
    ray = import_extra("ray", "ray")
    job = Job(**description)
    with ExitStack() as stack:
        if files is not None:
            out = stack.enter_context(TemporaryDirectory(prefix="metamirror-"))
            job = carried.receive(job, files, Path(out))
        job.describe()
        seen = carried.state_of(Path(job.out)) if files is not None else {}
        process = _worker(folder if os.path.isdir(folder) else None, threads)
        yield {"place": f"{ray.util.get_node_ip_address()}, process {process.pid}"}
        process.give(job.description)
        try:
            looked = time.monotonic()
            while (how := process.answer()) is None:
                time.sleep(SECONDS_BETWEEN_LOOKS)
                if files is not None and time.monotonic() - looked > SECONDS_BETWEEN_CARRIES:
                    looked = time.monotonic()
                    if changed := carried.changed(Path(job.out), seen):
                        yield {"files": carried.pack(changed, Path(job.out))}
        except BaseException:
            # Cancelled: the run saves what it has. What is not shared goes on from what was sent.
            process.stop()
            deadline = time.monotonic() + SECONDS_TO_SAVE
            while process.alive and time.monotonic() < deadline:
                time.sleep(SECONDS_BETWEEN_LOOKS)
            process.end()
            raise
        last: dict[str, Any] = {"how": how}
        if files is not None:
            changed = carried.changed(Path(job.out), seen)
            last["files"] = carried.pack(changed, Path(job.out))
        yield last


def _worker(folder: str | None, threads: int) -> WorkerProcess:
    """Return this process's worker, or a new one where it died or was meant for other GPUs."""
    key = (folder, threads, os.environ.get("CUDA_VISIBLE_DEVICES", ""))
    for other, process in list(_workers.items()):
        if other != key or not process.alive:
            process.end()
            del _workers[other]
    if key not in _workers:
        _workers[key] = WorkerProcess(threads, folder)
    return _workers[key]
