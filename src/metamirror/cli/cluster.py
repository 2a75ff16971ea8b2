"""`metamirror compare --status` and `compare --stop`."""

import time
from pathlib import Path
from typing import Annotated

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from tyro.conf import Positional, arg

from metamirror.cli.arguments import Json
from metamirror.console import printable
from metamirror.core.files import to_json
from metamirror.experiments.comparison.commands import working
from metamirror.experiments.comparison.launchers.launcher import SECONDS_TO_SAVE
from metamirror.experiments.comparison.status import status

Folder = Annotated[Path, Positional, arg(help="the folder of the comparison.")]
STATES = ("running", "failed", "waiting", "stopped", "done")


def show_status(folder: Folder, json: Json = False) -> None:
    """Show what a comparison runs and where, what is done, and what failed and why.

    From any terminal, on any machine that sees the folder.
    """
    found = status(folder)
    if json:
        print(to_json(found))
        return
    table = Table("run", "state", "where")
    for job in sorted(found["jobs"], key=lambda job: STATES.index(job["state"])):
        state = "" if job["state"] in ("done", "failed") else job["state"]
        words = f"{state} {job['says']}"
        table.add_row(job["job"], escape(printable(words.strip())), job["where"] or "")
    Console().print(table)
    counts = [(state, sum(job["state"] == state for job in found["jobs"])) for state in STATES]
    print(", ".join(f"{count} {state}" for state, count in counts if count))
    for command in found["commands"]:
        print(f"given out by process {command['pid']} on {command['host']}")
    if not found["commands"] and any(job["state"] == "stopped" for job in found["jobs"]):
        print("no command works on it: the same compare command goes on")


def stop(folder: Folder) -> None:
    """End a comparison: its runs save, the table of what is finished is written."""
    asked = working(folder)
    if not asked:
        raise ValueError(f"no command works on {folder}: there is nothing to stop")
    for command in asked:
        command.stop()
        print(f"asked process {command.pid} on {command.host} to stop", flush=True)
    deadline = time.monotonic() + 2 * SECONDS_TO_SAVE
    while (left := working(folder)) and time.monotonic() < deadline:
        time.sleep(0.5)
    if left:
        raise ValueError(f"process {left[0].pid} on {left[0].host} has not stopped yet: look again")
    print("stopped; the same compare command goes on")
