"""Run the studies of `studies.py`, and keep what belongs under results/study.

    python benchmarks/study.py list                     # the commands
    python benchmarks/study.py run  [NAME ..]           # trains; started again, it goes on
    python benchmarks/study.py keep [NAME ..]           # copies what belongs under results/

Runs go to runs/study/NAME. Kept are tables, the search, every run's configuration and learning
curve, and the accuracy on every test task; not the weights. What is kept is not trained again: more
seeds or methods add runs to it. Of some the paper's convergence figure is drawn as well, which
docs/studies/ shows.
"""

from __future__ import annotations

import argparse
import csv
import io
import math
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

from metamirror.core.files import file_name, read_json, write_atomically, write_json
from metamirror.data.path_spec import find_path
from metamirror.experiments.comparison.jobs import Job, Record, write_record
from metamirror.training.task_results import TaskResult, read_tasks, summary, write_tasks
from studies import STUDIES

ROOT = Path(__file__).parents[1]
RUNS, RESULTS = ROOT / "runs" / "study", ROOT / "results" / "study"
DOCS = ROOT / "docs" / "studies"
ELAPSED = "elapsed.json"
OF_A_RUN = ("config.json", "metrics.jsonl", "timing.jsonl", "versions.json")
CURVES = ("convergence.csv", "convergence.json")


def figure(name: str) -> str:
    """The file of a comparison's convergence figure in docs/studies/."""
    return f"convergence-{name}.svg"


def commands(name: str) -> list[str]:
    """What a user would type."""
    out = f"runs/study/{name}"
    found = [f"metamirror compare {STUDIES[name].options} --out {out}"]
    if STUDIES[name].curves:
        methods, options = STUDIES[name].curves.split(" ", 1)
        cells = [f"{out}/cells/{file_name(method)}-1shot-seed0" for method in methods.split(",")]
        found.append(f"metamirror convergence {' '.join(cells)} {options} --out {out}/convergence")
    return found


def run(name: str) -> None:
    fresh, began = not (RUNS / name).exists(), time.monotonic()
    if fresh and (RESULTS / name).exists():
        fresh = False
        restore(name)
    compare, *curves = commands(name)
    drawn = (RUNS / name / "convergence" / "convergence.json").exists()
    for command in [compare, *([] if drawn else curves)]:
        words = [sys.executable, "-m", *shlex.split(command)]
        subprocess.run(words, cwd=ROOT, check=True)
    if fresh:
        # What goes on after a stop says nothing about the whole.
        minutes = (time.monotonic() - began) / 60
        write_json(RUNS / name / ELAPSED, {"minutes": round(minutes, 1), "cores": os.cpu_count()})


def restore(name: str, runs: Path = RUNS, results: Path = RESULTS, docs: Path = DOCS) -> None:
    """Put what was kept of a comparison back into its folder: its runs count as done."""
    kept, out = results / name, runs / name
    with (kept / "test-tasks.csv").open(newline="") as file:
        tasks = list(csv.DictReader(file))
    for cell in sorted((kept / "cells").iterdir()):
        shutil.copytree(cell, out / "cells" / cell.name)
        found = [TaskResult(losses=(math.nan,), scores=(float(task[cell.name]),)) for task in tasks]
        config, folder = read_json(cell / "config.json"), f"cells/{cell.name}"
        job = Job(cell.name, "run", folder, config, tasks=len(tasks), out=str(out))
        file = Path("records", f"{cell.name}.tasks.jsonl")
        record = Record({**summary(found), "loss": None}, str(file))
        write_record(job, record)
        write_tasks(out / file, found)
    if (kept / CURVES[0]).exists():
        (out / "convergence").mkdir()
        for file in CURVES:
            shutil.copy(kept / file, out / "convergence" / file)
        shutil.copy(docs / figure(name), out / "convergence" / "convergence.svg")


def keep(name: str, runs: Path = RUNS, results: Path = RESULTS, docs: Path = DOCS) -> None:
    source, kept = runs / name, results / name
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    write_atomically(kept / "commands.txt", "".join(f"{c}\n" for c in commands(name)).encode())
    for file in ("table.md", "table.csv", "table.tex", "table.json", "search.json", ELAPSED):
        if (source / file).exists():
            shutil.copy(source / file, kept / file)
    rows = read_json(source / "table.json")["rows"]
    # Runs that have begun, and stand in no table yet, are left out.
    runs_of = {Path(seed["run"]).name for row in rows for seed in row["seeds"] if seed["run"]}
    for cell in (source / "cells" / name for name in sorted(runs_of)):
        (kept / "cells" / cell.name).mkdir(parents=True)
        for file in OF_A_RUN:
            if (cell / file).exists():
                shutil.copy(cell / file, kept / "cells" / cell.name / file)
    write_atomically(kept / "test-tasks.csv", task_by_task(source).encode())
    leave_out_folders(kept)
    if STUDIES[name].curves:
        for file in CURVES:
            shutil.copy(source / "convergence" / file, kept / file)
        shutil.copy(source / "convergence" / "convergence.svg", docs / figure(name))


def leave_out_folders(kept: Path) -> None:
    """Name data of one's own by the file alone: where it lay says nothing to others."""
    for config in kept.glob("cells/*/config.json"):
        if where := find_path(read_json(config)["data"]):
            for file in (config, *kept.glob("table.*")):
                text = file.read_text().replace(str(where.path), where.path.name)
                write_atomically(file, text.encode())


def task_by_task(comparison: Path) -> str:
    """The accuracy (or squared error) on every test task, a column for each run or control."""
    columns: dict[str, list[float]] = {}
    for file in sorted((comparison / "records").glob("*.json")):
        record = read_json(file)
        if record.get("tasks_file") and record["job"]["split"] == "test":
            found = read_tasks(comparison / record["tasks_file"])
            columns[record["job"]["name"]] = [result.score for result in found]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["task", *columns])
    rows = zip(*columns.values(), strict=True)
    writer.writerows([i, *(f"{value:.6g}" for value in row)] for i, row in enumerate(rows))
    return text.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=("list", "run", "keep"))
    parser.add_argument("names", nargs="*", help=f"of {', '.join(STUDIES)}; by default all")
    given = parser.parse_args()
    if unknown := set(given.names) - set(STUDIES):
        parser.error(f"{', '.join(unknown)} is none of {', '.join(STUDIES)}")
    earlier = [name for name in STUDIES if STUDIES[name].earlier]
    if given.action == "run" and (old := sorted(set(given.names) & set(earlier))):
        parser.error(f"{', '.join(old)} was made with the maps of an earlier version")
    for name in given.names or STUDIES:
        if given.action == "run" and name in earlier:
            continue
        if given.action == "list":
            print(*commands(name), sep="\n")
        elif given.action == "run":
            run(name)
        elif (RUNS / name / "table.json").exists():
            keep(name)


if __name__ == "__main__":
    main()
