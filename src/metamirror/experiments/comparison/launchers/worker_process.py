"""A worker process that takes one job after the other: importing torch takes longer than some."""

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from pathlib import Path

from metamirror.experiments.comparison import worker
from metamirror.parallel.task_pool import exit_reason


class WorkerProcess:
    """A process that runs jobs, given by the files that describe them.

    It ends at once if the one that started it dies.
    """

    def __init__(self, threads: int, folder: str | None = None):
        # In a session of its own: Ctrl-C must reach it once, through its launcher.
        self._process = subprocess.Popen(
            [sys.executable, "-m", worker.__name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd=folder,
            env=environment(threads),
        )
        self._answers: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put(b"")

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it can take another job."""
        return self._process.poll() is None

    def give(self, description: Path) -> None:
        """Have it run the job that a file describes."""
        assert self._process.stdin is not None
        # If it has died, no answer comes.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(str(description)).encode() + b"\n")
            self._process.stdin.flush()

    def answer(self) -> str | None:
        """Return how the job ended, as far as the process is concerned; None while it works."""
        try:
            answer = self._answers.get_nowait()
        except queue.Empty:
            return None
        if answer:
            return "left no record that can be read"
        reason = exit_reason(self._process.wait())
        self.end()
        return reason

    def stop(self) -> None:
        """Ask it to save its run and to end."""
        self._process.terminate()

    def end(self) -> None:
        """End it, whatever it does."""
        self._process.kill()
        self._process.wait()
        self._listener.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


def environment(threads: int) -> dict[str, str]:
    """Return the environment of a worker: this package on its path, and its own threads."""
    known = [str(Path(worker.__file__).parents[3]), *filter(None, [os.environ.get("PYTHONPATH")])]
    alone = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
    return {**alone, "OMP_NUM_THREADS": str(threads), "PYTHONPATH": os.pathsep.join(known)}
