"""What a comparison's folder says about its jobs, to whoever asks from another terminal."""

from pathlib import Path
from typing import Any

from metamirror.core.files import read_json
from metamirror.experiments.comparison import commands
from metamirror.experiments.comparison.jobs import DESCRIPTIONS, Job, read_record
from metamirror.experiments.comparison.status_board import last_line, outcome


def status(out: Path) -> dict[str, Any]:
    """Return what runs where, what is done, what failed and why, and which commands work on it."""
    descriptions = sorted((out / DESCRIPTIONS).glob("*.json"))
    if not descriptions:
        raise ValueError(f"{out} holds no comparison: give the folder that compare has as --out")
    working = commands.working(out)
    places = {name: place for command in working for name, place in command.running.items()}
    jobs = []
    for file in descriptions:
        try:
            # The folder may have another name where it is read.
            job = Job(**{**read_json(file), "out": str(out)})
        except (ValueError, TypeError):
            continue  # half a file, which is written again when its job is given out
        record, place = read_record(job), places.get(job.name)
        if place is not None:
            state, words = "running", last_line(job.file("log")) or "starting"
        elif record is not None:
            state, words = "done" if record.done else "failed", outcome(record)
        else:
            state, words = ("waiting" if working else "stopped"), ""
        jobs.append({"job": job.name, "state": state, "where": place, "says": words})
    own = [{"host": command.host, "pid": command.pid} for command in working]
    return {"commands": own, "jobs": jobs}
