"""The paper's table: methods x shots x seeds on one data set under one protocol, by one command."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from metamirror.console import say, warn
from metamirror.core.files import write_json
from metamirror.data import TaskStream
from metamirror.experiments.comparison import plan, search
from metamirror.experiments.comparison.commands import TABLE, Command
from metamirror.experiments.comparison.jobs import Job, Record, failed, read_record, write_record
from metamirror.experiments.comparison.launchers.launcher import Launcher
from metamirror.experiments.comparison.protocol import make_protocol
from metamirror.experiments.comparison.spec import Spec
from metamirror.experiments.comparison.status_board import StatusBoard
from metamirror.experiments.comparison.table import Row, make_table
from metamirror.experiments.statistics import BASELINE
from metamirror.methods import takes_real_targets
from metamirror.training.device import choose_device
from metamirror.training.interrupts import InterruptedRun
from metamirror.training.logs.registry import read_trackers

Table = dict[str, Any]
Records = dict[str, Record]


def compare(
    spec: Spec, launcher: Launcher, write_table: Callable[[Path, Table], None] | None = None
) -> Table:
    """Train and evaluate what is not finished yet, write table.json, and return it.

    Started again it goes on where it stopped: finished runs are left alone, half-finished ones
    resumed, failed ones tried again. With the same number of threads, the table is the same as
    without the stop. Several may work on one folder, such as one that adds seeds while another
    runs: they share the jobs, and the table is that of the one started last, unless it is stopped.
    `write_table` writes it into the folder in other forms, also when interrupted.
    """
    read_trackers(spec.log)
    if launcher.here:
        # Every run would fail for want of it, one after the other.
        choose_device(spec.device)
    streams = plan.open_streams(spec)
    stream = streams["train", spec.shots[0]]
    spec = _for_targets(spec, stream)
    rows = plan.make_rows(spec, stream)
    if spec.controls and BASELINE not in spec.methods:
        warn(f"{BASELINE} is not among the methods: no differences to it, no features of its start")
    added = [r.title for r in rows if r.group == "control" and r.method not in spec.methods]
    if added:
        named = "; ".join(dict.fromkeys(added))
        say(f"controls are added ({named}): --no-controls leaves them out")
    if spec.out.exists() and not spec.out.is_dir():
        raise ValueError(f"{spec.out} is a file: choose another folder with --out")
    spec.out.mkdir(parents=True, exist_ok=True)
    with Command(spec.out) as command:
        found = None
        if spec.search is not None:
            found = _search(spec.search, rows, launcher, spec.out, command)
            rows = plan.make_rows(spec, stream, search.chosen_rates(found))
        jobs = plan.jobs_of(rows)
        plan.refuse_other_settings(jobs)
        for job in jobs:
            job.describe()
        protocol = make_protocol(spec, rows, streams, found)
        records = _read(jobs)

        def finish() -> Table:
            table = make_table(protocol, rows, records)
            if not command.newest:
                say("another command was started later on this folder: the table is its")
                return table
            write_json(spec.out / TABLE, table)
            if write_table is not None:
                write_table(spec.out, table)
            return table

        try:
            runs = [job for job in jobs if job.work == "run"]
            chosen = search.chosen_rates(found)
            lost = [r for r in search.searched_rows(rows) if (r.method, r.shots) not in chosen]
            hopeless = plan.jobs_of(lost if found is not None else [])
            for job in hopeless:
                reason = "every step size of the search failed: see search.json"
                records[job.name] = write_record(job, failed(reason))
            hopeful = [job for job in runs if job not in hopeless]
            _do("compare", hopeful, launcher, records, command)
            # The features of a start that was not learned cannot be evaluated.
            unready = {job.folder for job in runs if not records[job.name].done}
            controls = [job for job in jobs if job.work != "run"]
            for job in controls:
                if job.folder in unready:
                    reason = f"the run in {job.folder} has failed"
                    records[job.name] = write_record(job, failed(reason))
            controls = [job for job in controls if job.folder not in unready]
            _do("controls", controls, launcher, records, command)
        except InterruptedRun:
            finish()
            say(f"what is finished is in {spec.out / TABLE}; the same command goes on")
            raise
        for name, record in records.items():
            if not record.done:
                warn(f"{name} failed: {record.reason}; the same command tries it again")
        return finish()


def _for_targets(spec: Spec, stream: TaskStream) -> Spec:
    """Leave methods that need classes out of a comparison on real targets."""
    if not stream.task(0, 0).query.y.is_floating_point():
        return spec
    able = [method for method in spec.methods if takes_real_targets(method)]
    if unable := ", ".join(method for method in spec.methods if method not in able):
        if not able:
            raise ValueError(f"{unable} need classes, and {spec.base.data} has real targets")
        warn(f"{unable} left out: they need classes, and {spec.base.data} has real targets")
    return replace(spec, methods=able)


def _read(jobs: Sequence[Job]) -> Records:
    return {job.name: record for job in jobs if (record := read_record(job)) is not None}


def _do(
    title: str, jobs: Sequence[Job], launcher: Launcher, records: Records, command: Command
) -> None:
    """Run the jobs that are not done yet, and keep their records."""
    for job in jobs:
        if (record := records.get(job.name)) is not None and not record.done:
            say(f"{job.name} failed before ({record.reason}): it is tried again")
            del records[job.name]
    if left := [job for job in jobs if job.name not in records]:
        with StatusBoard(title, jobs, records, command) as board:
            launcher.run(left, board)


def _search(
    given: search.Search, rows: Sequence[Row], launcher: Launcher, out: Path, command: Command
) -> dict[str, Any]:
    """Try every step size for every row, and write search.json."""
    tried = [(row, given.jobs(row)) for row in search.searched_rows(rows)]
    records = _read([job for _, jobs in tried for _, job in jobs])
    # Once a row is trained with a choice, a trial that failed is not tried again: it might win.
    left = [
        job
        for row, jobs in tried
        for _, job in jobs
        if job.name not in records or not (out / str(row.jobs[0].folder)).exists()
    ]
    _do("search", left, launcher, records, command)
    found = search.choose(given, tried, records)
    write_json(out / "search.json", found)
    if edges := search.at_the_edge(found):
        warn(f"the best step size is the smallest or largest tried of {', '.join(edges)}")
    return found
