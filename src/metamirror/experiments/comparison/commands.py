"""The commands that work on a comparison's folder now: what each runs, and how to stop them."""

import os
import signal
import socket
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from metamirror.core.files import read_json, write_json
from metamirror.storage.locks import is_locked, try_lock

FOLDER, TABLE = "commands", "table.json"
SECONDS_BETWEEN_LOOKS = 1.0


class Command(ExitStack):
    """This command among those that work on a folder; others see what it runs, and may stop it.

    Its lock is the operating system's: of a killed command, nobody thinks that it still works.
    """

    def __init__(self, out: Path):
        super().__init__()
        self.began = time.time()
        self.file = out / FOLDER / f"{socket.gethostname()}-{os.getpid()}.json"
        self._looked = 0.0
        self._table = out / TABLE
        self._found = _stamp(self._table)

    def __enter__(self) -> Self:
        lock = try_lock(self.file.with_suffix(".lock"))
        assert lock is not None, "the name has this process in it"
        for ending in (".lock", ".stop", ".json"):
            self.callback(self.file.with_suffix(ending).unlink, missing_ok=True)
        self.callback(lock.release)
        self.show({})
        return self

    def show(self, places: Mapping[str, str]) -> None:
        """Write down which jobs run, and where."""
        host, pid = socket.gethostname(), os.getpid()
        own = {"host": host, "pid": pid, "began": self.began, "running": dict(places)}
        write_json(self.file, own)

    def tick(self) -> None:
        """Act on a wish of `stop` as on SIGTERM."""
        if time.monotonic() - self._looked > SECONDS_BETWEEN_LOOKS:
            self._looked = time.monotonic()
            if self.file.with_suffix(".stop").exists():
                self.file.with_suffix(".stop").unlink(missing_ok=True)
                signal.raise_signal(signal.SIGTERM)

    @property
    def newest(self) -> bool:
        """Whether no command was started later on this folder: it writes, or wrote, the table."""
        others = working(self.file.parents[1])
        return all(other.began <= self.began for other in others) and not self._overtaken

    @property
    def _overtaken(self) -> bool:
        """Whether a later command has ended with a whole table; a stopped one leaves half a one."""
        # Not by the time in it: the clocks of two machines differ. Only a later one can have
        # written it, since an earlier one leaves it to this.
        if _stamp(self._table) == self._found:
            return False
        try:
            return all(row["status"] != "missing" for row in read_json(self._table)["rows"])
        except (ValueError, KeyError, TypeError, OSError):
            return False


@dataclass(frozen=True)
class Working:
    """A command at work, as seen by others."""

    file: Path
    host: str
    pid: int
    began: float
    running: dict[str, str]  # where each of its jobs runs

    def stop(self) -> None:
        """Ask it to let its runs save, to write the table, and to end."""
        self.file.with_suffix(".stop").touch()


def _stamp(file: Path) -> tuple[int, int, int] | None:
    """Return what changes whenever a file is written anew; None if there is none."""
    try:
        found = file.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def working(out: Path) -> list[Working]:
    """Return the commands that work on a folder; those of killed processes are cleared away."""
    found = []
    for file in sorted((out / FOLDER).glob("*.json")):
        try:
            lock = try_lock(file.with_suffix(".lock"))
        except OSError:
            # Whoever may only read the folder sees the same, and clears nothing away.
            if not is_locked(file.with_suffix(".lock")):
                continue
            lock = None
        if lock is not None:
            for ending in (".json", ".stop", ".lock"):
                file.with_suffix(ending).unlink(missing_ok=True)
            lock.release()
            continue
        # One that cannot be read ended just now.
        with suppress(ValueError, TypeError):
            found.append(Working(file, **read_json(file)))
    return found
