"""The study of docs/reproduce.md: its comparisons, and what of them is kept in results/study.

    python benchmarks/study.py list                     # the commands
    python benchmarks/study.py run  [NAME ..]           # trains; started again, it goes on
    python benchmarks/study.py keep [NAME ..]           # copies what belongs under results/

Runs go to runs/study/NAME. Kept are tables, the search, every run's configuration and learning
curve, and the accuracy on every test task; not the weights. Of some the paper's convergence figure
is drawn as well, which docs/ shows.
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

from metamirror.core.files import file_name, read_json, write_atomically
from metamirror.training.task_results import read_tasks

ROOT = Path(__file__).parents[1]
RUNS, RESULTS, DOCS = ROOT / "runs" / "study", ROOT / "results" / "study", ROOT / "docs"

EVERY = "maml,metasgd,blockiaf,gradnet,metacurvature,metakfo,warpgrad,mtnet,ecml"
PICTURES = (
    "--ways 5 --queries 15 --steps 5 --tasks-per-step 2 --width 32 --optimizer adam "
    "--outer-lr 0.003 --schedule cosine --iterations 700 --validate-every 350 --val-tasks 100 "
    "--checkpoint-every 200 --search 0.1 --search-geometry 0.003,0.0005 "
    "--search-iterations 100 --jobs 2"
)
MINI = f"--data mini-imagenet --image-size 32 {PICTURES} --search-tasks 150 --test-tasks 600"


def one_step(search: str) -> str:
    """One inner step and fewer queries take less time, and more tasks are seen for it."""
    return (
        "--ways 5 --queries 5 --steps 1 --tasks-per-step 2 --width 32 --optimizer adam "
        f"--outer-lr 0.003 --schedule cosine --val-tasks 200 --search {search} "
        "--search-geometry 0.003,0.0005 --test-tasks 1000 --jobs 2"
    )


OMNIGLOT_ONE_STEP = (
    f"--data omniglot --image-size 28 {one_step('0.2')} --iterations 10000 --validate-every 2500 "
    "--checkpoint-every 1000 --search-iterations 300 --search-tasks 200 --shots 1"
)
ANCHORED = "gradnet:anchored=true:metric=kronecker:log_range=12"
QUADRATIC = f"{ANCHORED}:rho=0"
"""Its metric alone: what the network adds to it is the difference."""
CURVE = (
    "--data sinusoid --queries 15 --steps 1 --tasks-per-step 25 --iterations 3000 "
    "--optimizer adam --outer-lr 0.001 --validate-every 1000 --val-tasks 200 "
    "--checkpoint-every 1000 --test-tasks 1000 --search 0.01,0.03,0.1 --search-iterations 300 "
    "--search-tasks 200 --seeds 1 --jobs 2"
)
MAPS = "maml,blockiaf,gradnet,metacurvature,blockiaf:mixing=kronecker"
COMMON = (
    "--ways 5 --shots 1 --tasks-per-step 4 --width 32 --optimizer adam --schedule cosine "
    "--val-tasks 200 --test-tasks 1000 --jobs 2 --no-controls"
)
ONE_STEP = "--steps 1 --lr 0.2 --outer-lr 0.003 --queries 5"
FIVE_STEPS = "--steps 5 --lr 0.01 --outer-lr 0.001"
"""The step size and the outer learning rate that `train` has by default, and the paper."""


def maps(tasks: str, iterations: int, methods: str, seeds: int = 3) -> str:
    """All defaults of the maps and one outer learning rate: do they lead without a search?"""
    every = iterations // 2 if iterations < 10_000 else 2_500
    return (
        f"{tasks} {COMMON} --iterations {iterations} --validate-every {every} "
        f"--checkpoint-every 500 --methods {methods} --seeds {seeds}"
    )


OMNIGLOT, SMALL = "--data omniglot --image-size 28", "--data mini-imagenet --image-size 32"
ABLATION = ",".join(
    ["maml", "metasgd"]
    + [
        f"blockiaf:parametrisation={parametrisation}:start={start}:scale={scale}:mixing={mixing}"
        for parametrisation in ("fan_in", "standard")
        for start in ("primal", "dual")
        for scale in ("wide", "bounded")
        for mixing in ("none", "kronecker")
    ]
)
"""What each deviation of the default map from the paper's is worth, alone and with the others."""

STUDY = {
    "omniglot-maps-one-step": maps(f"{OMNIGLOT} {ONE_STEP}", 5000, MAPS, seeds=1),
    "omniglot-maps-five-steps": maps(
        f"{OMNIGLOT} {FIVE_STEPS} --queries 5", 5000, "maml,blockiaf", seeds=1
    ),
    "mini-imagenet-maps-five-steps": maps(
        f"{SMALL} {FIVE_STEPS} --queries 15", 10_000, "maml,blockiaf,metasgd"
    ),
    "omniglot-maps-ablation": maps(f"{OMNIGLOT} {ONE_STEP}", 1000, ABLATION),
    "mini-imagenet-maps-ablation": maps(f"{SMALL} {ONE_STEP}", 1000, ABLATION),
    "mini-imagenet-1shot": (
        f"{MINI} --shots 1 --methods {EVERY},blockiaf:variant=released "
        "--seeds 1,maml=2,metasgd=2,blockiaf=2,gradnet=2"
    ),
    "omniglot-1shot": (
        f"--data omniglot --image-size 28 {PICTURES} --search-tasks 100 "
        f"--test-tasks 1000 --shots 1 --methods {EVERY} --seeds 1"
    ),
    "mini-imagenet-1shot-one-step": (
        f"--data mini-imagenet --image-size 32 {one_step('0.1,0.2,0.4')} --validate-every 1000 "
        "--checkpoint-every 1000 --iterations 4000 --search-iterations 500 --search-tasks 400 "
        f"--shots 1 --methods {EVERY},{ANCHORED},{QUADRATIC},blockiaf:anchored=true,"
        "blockiaf:variant=released "
        f"--seeds 1,maml=3,metasgd=3,blockiaf=3,{ANCHORED}=3,{QUADRATIC}=3"
    ),
    "omniglot-1shot-one-step": (
        f"{OMNIGLOT_ONE_STEP} --methods maml,metasgd,metacurvature,{ANCHORED},blockiaf --seeds 1"
    ),
    "omniglot-1shot-one-step-others": (
        f"{OMNIGLOT_ONE_STEP} --methods maml,metakfo,blockiaf:anchored=true,ecml,mtnet,warpgrad,"
        "gradnet --seeds 1 --no-controls"
    ),
    "sinusoid-5shot": f"{CURVE} --shots 5 --methods {EVERY}",
    "sinusoid-10shot": f"{CURVE} --shots 10 --methods {EVERY}",
    "mini-imagenet-5shot": (
        f"--data mini-imagenet --image-size 32 {one_step('0.2')} --validate-every 500 "
        "--checkpoint-every 500 --iterations 1000 --search-iterations 100 --search-tasks 200 "
        f"--shots 5 --methods maml,metasgd,metacurvature,blockiaf,{ANCHORED} --seeds 1"
    ),
}


EARLIER = [name for name in STUDY if "-maps-" not in name]
"""Made with maps of an earlier version: kept, but their commands no longer give these tables."""

CURVES = {
    "omniglot-maps-five-steps": "maml,blockiaf --tasks 1000",
    "mini-imagenet-1shot": "maml,metasgd,blockiaf,gradnet --tasks 1000",
    "mini-imagenet-1shot-one-step": (
        f"maml,metasgd,metakfo,blockiaf,{ANCHORED} --tasks 1000 --steps 5"
    ),
}
"""Whose convergence is drawn, and how."""


def figure(name: str) -> str:
    """The file of a comparison's convergence figure in docs/."""
    return f"convergence-{name}.svg"


def commands(name: str) -> list[str]:
    """What a user would type."""
    out = f"runs/study/{name}"
    found = [f"metamirror compare {STUDY[name]} --out {out}"]
    if name in CURVES:
        methods, options = CURVES[name].split(" ", 1)
        cells = [f"{out}/cells/{file_name(method)}-1shot-seed0" for method in methods.split(",")]
        found.append(f"metamirror convergence {' '.join(cells)} {options} --out {out}/convergence")
    return found


def run(name: str) -> None:
    for command in commands(name):
        words = [sys.executable, "-m", *shlex.split(command)]
        subprocess.run(words, cwd=ROOT, check=True)


def keep(name: str, runs: Path = RUNS, results: Path = RESULTS, docs: Path = DOCS) -> None:
    source, kept = runs / name, results / name
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    write_atomically(kept / "commands.txt", "".join(f"{c}\n" for c in commands(name)).encode())
    for file in ("table.md", "table.csv", "table.tex", "table.json", "search.json"):
        if (source / file).exists():
            shutil.copy(source / file, kept / file)
    rows = read_json(source / "table.json")["rows"]
    # Runs that have begun, and stand in no table yet, are left out.
    runs_of = {Path(seed["run"]).name for row in rows for seed in row["seeds"] if seed["run"]}
    for cell in (source / "cells" / name for name in sorted(runs_of)):
        (kept / "cells" / cell.name).mkdir(parents=True)
        for file in ("config.json", "metrics.jsonl", "versions.json"):
            shutil.copy(cell / file, kept / "cells" / cell.name / file)
    write_atomically(kept / "test-tasks.csv", task_by_task(source).encode())
    if name in CURVES:
        for file in ("convergence.csv", "convergence.json"):
            shutil.copy(source / "convergence" / file, kept / file)
        shutil.copy(source / "convergence" / "convergence.svg", docs / figure(name))


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
    parser.add_argument("names", nargs="*", help=f"of {', '.join(STUDY)}; by default all")
    given = parser.parse_args()
    if unknown := set(given.names) - set(STUDY):
        parser.error(f"{', '.join(unknown)} is none of {', '.join(STUDY)}")
    if given.action == "run" and (old := sorted(set(given.names) & set(EARLIER))):
        parser.error(f"{', '.join(old)} was made with the maps of an earlier version")
    for name in given.names or STUDY:
        if given.action == "run" and name in EARLIER:
            continue
        if given.action == "list":
            print(*commands(name), sep="\n")
        elif given.action == "run":
            run(name)
        elif (RUNS / name / "table.json").exists():
            keep(name)


if __name__ == "__main__":
    main()
