"""Jobs in worker processes of this machine."""

import socket

import torch

from metamirror.experiments.comparison.jobs import Job
from metamirror.experiments.comparison.launchers.launcher import Launcher, refuse_less_than_one
from metamirror.experiments.comparison.launchers.worker_process import WorkerProcess


class LocalLauncher(Launcher):
    """Runs jobs in worker processes. A job that fails costs its own process and no other's.

    Args:
        processes: how many at a time; they share the threads that torch has here.
    """

    here = True

    def __init__(self, processes: int = 1):
        super().__init__()
        refuse_less_than_one(jobs=processes)
        self.room = processes
        self.threads = max(1, torch.get_num_threads() // processes)
        self._idle: list[WorkerProcess] = []

    def submit(self, job: Job) -> "_Attempt":
        while self._idle:
            if (process := self._idle.pop()).alive:
                break
        else:
            process = WorkerProcess(self.threads)
            self.callback(process.end)
        process.give(job.description)
        return _Attempt(process, self._idle)


class _Attempt:
    """A job in one of the processes, which joins the idle ones when it has ended."""

    def __init__(self, process: WorkerProcess, idle: list[WorkerProcess]):
        self._process, self._idle = process, idle

    def place(self) -> str:
        return f"{socket.gethostname()}, process {self._process.pid}"

    def ended(self) -> str | None:
        how = self._process.answer()
        if how is not None and self._process.alive:
            self._idle.append(self._process)
        return how

    def stop(self) -> None:
        self._process.stop()
