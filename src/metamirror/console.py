"""A progress bar on a terminal, plain lines elsewhere; always on standard error."""

import sys
import time
from typing import Any

SECONDS_BETWEEN_LINES = 10.0


def printable(text: object) -> str:
    r"""Escape what a terminal would obey: names of files and classes can hold its commands.

    >>> print(printable("cat\x1b[2J"))
    cat\x1b[2J
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))


def say(message: str) -> None:
    """Print a line on standard error, where a user sees it and a pipe does not."""
    lines = (printable(line) for line in message.split("\n"))
    print("metamirror: " + "\n".join(lines), file=sys.stderr, flush=True)


def warn(message: str) -> None:
    """Print a warning."""
    say(f"warning: {message}")


class Progress:
    """Counts towards a total with `update(done, note)`; `done` of it was done before."""

    def __init__(self, title: str, total: int, *, done: int = 0, quiet: bool = False):
        self.title, self.total, self.before, self.quiet = title, total, done, quiet
        self.bar: Any = None
        if sys.stderr.isatty() and not quiet:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            self.bar = Bar(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[rate]}"),
                TimeRemainingColumn(),
                TextColumn("{task.fields[note]}"),
                console=Console(stderr=True),
            )
            self.row = self.bar.add_task(title, total=total, completed=done, rate="", note="")
        self.began = self.last = time.monotonic()

    def __enter__(self) -> "Progress":
        if self.bar is not None:
            self.bar.start()
        return self

    def resize(self, total: int) -> None:
        """Change how much there is to do, where that is known only later."""
        self.total = total
        if self.bar is not None:
            self.bar.update(self.row, total=total)

    def update(self, done: int, note: str) -> None:
        """Show how much is done, and a few words."""
        now = time.monotonic()
        rate = (done - self.before) / max(now - self.began, 1e-9)
        if self.bar is not None:
            self.bar.update(self.row, completed=done, rate=f"{rate:.1f}/s", note=note)
        elif not self.quiet and (now - self.last >= SECONDS_BETWEEN_LINES or done >= self.total):
            left = (self.total - done) / max(rate, 1e-9)
            words = f"{self.title}: {done}/{self.total}, {rate:.1f}/s, {left:.0f} s left"
            print(f"{words}, {note}" if note else words, file=sys.stderr, flush=True)
            self.last = now

    def __exit__(self, *error: object) -> None:
        if self.bar is not None:
            self.bar.stop()
