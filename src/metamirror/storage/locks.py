"""A lock on a folder, for one process at a time."""

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from metamirror.core.files import read_json, write_json

OWNER = "owner.json"


class FolderInUseError(ValueError):
    """Another process has locked the folder."""


@contextmanager
def locked(folder: Path, name: str) -> Iterator[None]:
    """Lock a folder by the system's lock on a file in it; a second process is told of the first."""
    with ExitStack() as stack:
        try:
            stack.enter_context(FileLock(folder / name, timeout=0))
        except Timeout as error:
            try:
                owner = read_json(folder / OWNER)
                whom = f"process {owner['pid']} on {owner['host']}"
            except (ValueError, KeyError, TypeError):
                whom = "another process"
            raise FolderInUseError(
                f"{folder} is in use by {whom}: wait for it or stop it"
            ) from error
        stack.callback((folder / OWNER).unlink, missing_ok=True)
        write_json(folder / OWNER, {"pid": os.getpid(), "host": socket.gethostname()})
        yield


def try_lock(file: Path) -> FileLock | None:
    """Return the system's lock on a file, to be released; None if another process has it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(file, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        return None
    return lock


def is_locked(file: Path) -> bool:
    """Return whether a process has the system's lock on a file that may only be read here."""
    if sys.platform == "win32":
        return True  # it cannot be told without writing
    import fcntl

    try:
        with file.open("rb") as opened:
            # A shared one: over NFS, an exclusive lock needs a file that is open for writing.
            fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
