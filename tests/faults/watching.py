"""What Python itself reports of a program's deeds: writes, processes, connections, pickles.

An audit hook hears of them before they happen, whoever asked for them. It cannot be taken off
again, so there is one, and it keeps quiet unless a `watched` block is open.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
PATHS = {
    # Event: which of its arguments are paths that change.
    "os.mkdir": (0,),
    "os.remove": (0,),
    "os.rmdir": (0,),
    "os.rename": (0, 1),
    "os.link": (1,),
    "os.symlink": (1,),
    "os.truncate": (0,),
    "os.chmod": (0,),
    "shutil.rmtree": (0,),
}
# torch makes a folder for what it compiles when it is first asked for certain derivatives.
NEUTRAL = ("/dev/null", "/dev/tty", os.path.join(tempfile.gettempdir(), "torchinductor_"))
FORBIDDEN = (
    "pickle.find_class",
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "os.fork",
    "os.posix_spawn",
    "ctypes.dlopen",
    "socket.connect",
    "socket.bind",
    "socket.getaddrinfo",
)


@dataclass
class Watch:
    """What is allowed, and what was seen beyond it.

    Attributes:
        folder: the only place that may be written to.
        allowed: forbidden events that are expected after all.
        seen: what happened that must not.
    """

    folder: Path
    allowed: tuple[str, ...] = ()
    seen: list[str] = field(default_factory=list)

    def hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if isinstance(flags, int) and flags & WRITING:
                self._note(event, path)
        elif event in PATHS:
            for place in PATHS[event]:
                self._note(event, _whole(arguments[place], arguments[-1]))
        elif event in FORBIDDEN and event not in self.allowed:
            self.seen.append(f"{event} {arguments!r:.200}")

    def _note(self, event: str, path: Any) -> None:
        if not isinstance(path, str | bytes | os.PathLike):
            return  # a descriptor: it was opened before
        place = os.path.realpath(os.fsdecode(path))
        inside = place == str(self.folder) or place.startswith(f"{self.folder}{os.sep}")
        if not inside and not place.startswith(NEUTRAL):
            self.seen.append(f"{event} {place}")


def _whole(path: Any, folder: Any) -> Any:
    """The path from an open folder, where it is given that way, as `shutil.rmtree` does."""
    if isinstance(folder, int) and folder > 0 and not isinstance(path, int):
        with contextlib.suppress(OSError):
            return os.path.join(os.readlink(f"/proc/self/fd/{folder}"), os.fsdecode(path))
    return path


_open: list[Watch] = []


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    for watch in _open:
        watch.hear(event, arguments)


@contextmanager
def watched(folder: Path, allowed: tuple[str, ...] = ()) -> Iterator[Watch]:
    """Notes every deed in the block that `folder` and `allowed` do not cover."""
    if not _installed:
        sys.addaudithook(_hear)
        _installed.append(True)
    watch = Watch(folder.resolve(), allowed)
    _open.append(watch)
    try:
        yield watch
    finally:
        _open.remove(watch)


_installed: list[bool] = []
