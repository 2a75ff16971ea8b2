"""The paper's table: methods x shots x seeds on one data set under one protocol, by one command."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from metamirror.console import say, warn
from metamirror.data import ImageTasks
from metamirror.experiments.comparison import search as searching
from metamirror.experiments.comparison.entries import BASELINE
from metamirror.experiments.comparison.grid import Cell, Rates, open_streams, refuse_others
from metamirror.experiments.comparison.jobs import (
    Job,
    Place,
    Record,
    done,
    failed,
    read_record,
    write_record,
)
from metamirror.experiments.comparison.local_pool import Pool
from metamirror.experiments.comparison.plan import Grid, Row, Wanted, jobs_of, make_grid, make_rows
from metamirror.experiments.comparison.protocol import make_protocol
from metamirror.experiments.comparison.search import Search
from metamirror.experiments.comparison.status_board import Board
from metamirror.experiments.comparison.table import failures, make_table
from metamirror.report import tables
from metamirror.storage.atomic import write_atomically, write_json
from metamirror.storage.locks import locked
from metamirror.training.device import choose_device
from metamirror.training.interrupts import InterruptedRun

LOCK = ".compare.lock"


def compare(
    wanted: Wanted, place: Place, *, jobs: int = 1, search: Search | None = None
) -> dict[str, Any]:
    """Trains and judges what is not finished yet, and writes the tables and the report.

    Started again it goes on where it stopped: finished runs are left alone, half-finished ones
    resumed, failed ones tried again. With the same number of jobs, and so of threads, the table is
    the same as without the stop.

    Args:
        wanted: rows, columns and settings.
        place: the folder of the comparison, the device, the data.
        jobs: runs at a time.
        search: how to find the inner step sizes, if they are not given.
    """
    if search is not None:
        search.check()
    # Every run would fail for want of it, one after the other.
    choose_device(place.device)
    streams = open_streams(wanted.base, wanted.shots, place.data_dir)
    stream = streams["train", wanted.shots[0]]
    grid = make_grid(wanted, stream)
    if wanted.controls and BASELINE not in wanted.methods:
        warn(f"{BASELINE} is not among the methods: no differences to it, no features of its start")
    with _claimed(place.out), Pool(place, jobs) as pool:
        found = None if search is None else _search(grid, search, pool)
        cells = grid.cells(_chosen(found))
        refuse_others(cells, place.out)
        rows = make_rows(grid, cells, pictures=isinstance(stream, ImageTasks))
        protocol = make_protocol(grid, cells, streams, found)
        try:
            lost = _without_step_size(cells, rows, found, place.out)
            wanted_jobs = [job for job in jobs_of(rows) if job.name not in lost]
            # The first seed of every row before the second of any.
            order = {cell.name: i for i, cell in enumerate(cells)}
            runs = [job for job in wanted_jobs if job.work == "run"]
            runs.sort(key=lambda job: order[job.name])
            _do("compare", runs, pool)
            # The features of a start that did not come to be cannot be judged.
            ready = {job.folder for job in runs if done(read_record(place.out, job))}
            others = [job for job in wanted_jobs if job.work != "run"]
            for job in others:
                if job.folder not in (None, *ready):
                    reason = f"the run in {job.folder} has failed"
                    write_record(place.out, job.name, failed(job, reason))
            _do("controls", [j for j in others if j.folder is None or j.folder in ready], pool)
        except InterruptedRun:
            write_tables(place.out, make_table(place.out, protocol, rows))
            say(f"what is finished is in {place.out / 'table.md'}; the same command goes on")
            raise
        table = make_table(place.out, protocol, rows)
        write_tables(place.out, table)
        write_page(place.out, data_dir=place.data_dir)
        for name, record in failures(place.out, jobs_of(rows)).items():
            warn(f"{name} failed: {record.reason}; the same command tries it again")
    return table


def write_tables(out: Path, table: Mapping[str, Any]) -> None:
    """table.json, .md, .csv and .tex."""
    write_json(out / "table.json", table)
    for name, text in (
        ("table.md", tables.markdown(table)),
        ("table.csv", tables.as_csv(table)),
        ("table.tex", tables.latex(table)),
    ):
        write_atomically(out / name, text.encode())


def write_page(out: Path, **options: Any) -> None:
    """report.html, over everything in the folder; options are those of `write_report`."""
    # Plots are made with much that nothing else here needs.
    from metamirror.report.page import write_report

    write_report(out, **options)


@contextmanager
def _claimed(out: Path) -> Iterator[None]:
    """The folder, for one comparison at a time."""
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file: choose another folder with --out")
    out.mkdir(parents=True, exist_ok=True)
    with locked(out, LOCK):
        yield


def _do(title: str, jobs: Sequence[Job], pool: Pool) -> None:
    """Does what is not done yet."""
    records = {job.name: read_record(pool.place.out, job) for job in jobs}
    finished = {name: r for name, r in records.items() if r is not None and done(r)}
    for name, record in records.items():
        if record is not None and not done(record):
            say(f"{name} failed before ({record.reason}): it is tried again")
    left = [job for job in jobs if job.name not in finished]
    if left:
        with Board(title, pool.place.out, jobs, finished) as board:
            pool.run(left, board)


def _search(grid: Grid, search: Search, pool: Pool) -> dict[str, Any]:
    """Tries every step size for every row, and writes search.json."""
    extra = {entry.runs: grid.extra[entry.label] for entry in grid.entries}
    trials = searching.trials(grid.cells(), search, extra)
    out = pool.place.out
    # Once a row is trained with a choice, a trial that failed is not tried again: it might win.
    open_still = [
        trial.job
        for trial in trials
        if not (out / trial.cell).exists() or read_record(out, trial.job) is None
    ]
    _do("search", open_still, pool)
    tried = [(trial, read_record(out, trial.job) or Record({})) for trial in trials]
    found = searching.choose(tried, search)
    write_json(out / "search.json", found)
    if edges := searching.at_the_edge(found):
        warn(f"the best step size is the smallest or largest tried of {', '.join(edges)}")
    return found


def _chosen(found: Mapping[str, Any] | None) -> dict[tuple[str, int], Rates]:
    rows = [] if found is None else found["rows"]
    return {
        (r["label"], r["shots"]): Rates(r["lr"], r["geometry_lr"])
        for r in rows
        if r["lr"] is not None
    }


def _without_step_size(
    cells: Sequence[Cell], rows: Sequence[Row], found: Mapping[str, Any] | None, out: Path
) -> set[str]:
    """Runs of rows for which the whole search failed: on record as failed, not started."""
    chosen = _chosen(found)
    lost = {c.name for c in cells if found and (c.label, c.config.shots) not in chosen}
    for job in jobs_of(rows):
        if job.name in lost:
            reason = "every step size of the search failed: see search.json"
            write_record(out, job.name, failed(job, reason))
    return lost
