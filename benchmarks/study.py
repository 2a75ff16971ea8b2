"""The study of docs/reproduce.md: its comparisons, and what of them is kept in results/study.

    python benchmarks/study.py list                     # the commands
    python benchmarks/study.py run  [NAME ..]           # trains; started again, it goes on
    python benchmarks/study.py keep [NAME ..]           # copies what belongs under results/

Runs go to runs/study/NAME. Kept are tables, the search, every run's configuration and learning
curve, and the accuracy on every test task; not the weights.
"""

from __future__ import annotations

import argparse
import csv
import io
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from metamirror.evaluate import read_tasks
from metamirror.files import read_json, write_atomically

ROOT = Path(__file__).parents[1]
RUNS, RESULTS = ROOT / "runs" / "study", ROOT / "results" / "study"

EVERY = "maml,metasgd,blockiaf,gradnet,metacurvature,metakfo,warpgrad,mtnet,ecml"
PICTURES = (
    "--ways 5 --queries 15 --steps 5 --tasks-per-step 2 --optimizer adam --outer-lr 0.001 "
    "--width 32 --validate-every 500 --val-tasks 200 --checkpoint-every 250 --test-tasks 1000 "
    "--search-tasks 200 --jobs 2"
)
MINI = f"--data mini-imagenet --image-size 32 --iterations 2000 {PICTURES}"
CURVE = (
    "--data sinusoid --queries 15 --steps 1 --tasks-per-step 25 --iterations 5000 "
    "--optimizer adam --outer-lr 0.001 --validate-every 1000 --val-tasks 200 "
    "--checkpoint-every 1000 --test-tasks 1000 --search 0.01,0.03,0.1 --search-iterations 500 "
    "--search-tasks 200 --seeds 1 --jobs 2"
)
STUDY = {
    "mini-imagenet-1shot": (
        f"{MINI} --shots 1 --methods {EVERY},blockiaf:variant=released "
        "--seeds 1,maml=3,metasgd=3,blockiaf=3,gradnet=3 --search 0.03,0.1 --search-iterations 300"
    ),
    "omniglot-1shot": (
        f"--data omniglot --image-size 28 --iterations 1500 {PICTURES} --shots 1 "
        f"--methods {EVERY} --seeds 1 --search 0.1,0.4 --search-iterations 200"
    ),
    "sinusoid-5shot": f"{CURVE} --shots 5 --methods {EVERY}",
    "sinusoid-10shot": f"{CURVE} --shots 10 --methods {EVERY}",
    "mini-imagenet-5shot": (
        f"{MINI} --shots 5 --methods maml,metasgd,metacurvature,blockiaf,gradnet "
        "--seeds 1 --search 0.03,0.1 --search-iterations 300"
    ),
}


def command(name: str) -> str:
    """What a user would type."""
    return f"metamirror compare {STUDY[name]} --out runs/study/{name}"


def run(name: str) -> None:
    words = [sys.executable, "-m", *shlex.split(command(name))]
    subprocess.run(words, cwd=ROOT, check=True)


def keep(name: str, runs: Path = RUNS, results: Path = RESULTS) -> None:
    source, kept = runs / name, results / name
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    write_atomically(kept / "command.txt", f"{command(name)}\n".encode())
    for file in ("table.md", "table.csv", "table.tex", "table.json", "search.json"):
        if (source / file).exists():
            shutil.copy(source / file, kept / file)
    for cell in sorted((source / "cells").iterdir()):
        (kept / "cells" / cell.name).mkdir(parents=True)
        for file in ("config.json", "metrics.jsonl", "versions.json"):
            shutil.copy(cell / file, kept / "cells" / cell.name / file)
    write_atomically(kept / "test-tasks.csv", task_by_task(source).encode())


def task_by_task(comparison: Path) -> str:
    """The accuracy (or squared error) on every test task, a column for each run or control."""
    columns: dict[str, list[float]] = {}
    for file in sorted((comparison / "records").glob("*.json")):
        record = read_json(file)
        if record.get("tasks_file") and record["job"]["split"] == "test":
            found = read_tasks(comparison / record["tasks_file"])
            columns[record["job"]["name"]] = [
                r.loss if r.accuracies is None else r.accuracy for r in found
            ]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["task", *columns])
    rows = zip(*columns.values(), strict=True)
    writer.writerows([i, *(f"{value:.6g}" for value in row)] for i, row in enumerate(rows))
    return text.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=("list", "run", "keep"))
    parser.add_argument("names", nargs="*", help=f"of {', '.join(STUDY)}; by default all")
    given = parser.parse_args()
    if unknown := set(given.names) - set(STUDY):
        parser.error(f"{', '.join(unknown)} is none of {', '.join(STUDY)}")
    for name in given.names or STUDY:
        if given.action == "list":
            print(command(name))
        elif given.action == "run":
            run(name)
        elif (RUNS / name / "table.json").exists():
            keep(name)


if __name__ == "__main__":
    main()
