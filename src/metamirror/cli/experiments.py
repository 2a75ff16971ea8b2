"""The commands of experiments: the paper's table, its small sibling, its complexity appendix."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, fields, make_dataclass, replace
from dataclasses import field as dataclass_field
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import tyro
from rich.console import Console

from metamirror.data.own_folder import absolute_folder
from metamirror.experiments.comparison.compare import compare as run_comparison
from metamirror.experiments.comparison.launchers.local import LocalLauncher
from metamirror.experiments.comparison.search import Search
from metamirror.experiments.comparison.spec import Recipes, Spec, read_methods, read_numbers
from metamirror.experiments.cost import (
    ROUNDS,
    Workload,
    measure_cost,
    parse_methods,
    parse_shape,
)
from metamirror.experiments.quickstart import SECONDS_AT_THE_END
from metamirror.experiments.quickstart import quickstart as run_quickstart
from metamirror.report.page import write_report
from metamirror.report.tables import cost_table, show, write_tables
from metamirror.storage.atomic import to_json
from metamirror.training.config import RunConfig

OF_THE_GRID = ("method", "shots", "seed", "lr")
"""Settings of a run that `compare` has its own flags for."""


def common_settings(base: RunConfig) -> Any:
    """A dataclass with the settings that all runs of a comparison share, for tyro to make flags of.

    Its default is `base`.
    """
    hints = get_type_hints(RunConfig)
    said = dict(re.findall(r"^ {8}(\w+): (.+)$", RunConfig.__doc__ or "", re.MULTILINE))
    shared = [f.name for f in fields(RunConfig) if f.name not in OF_THE_GRID]
    made = make_dataclass(
        "Settings",
        [
            (
                name,
                Annotated[hints[name], tyro.conf.arg(help=said[name])],
                dataclass_field(default=getattr(base, name)),
            )
            for name in shared
        ],
        frozen=True,
    )
    return made()


def compare_from(base: RunConfig | None) -> Callable[..., None]:
    """The command `compare` with the settings that its flags start from, if a file gives them."""
    start = base or RunConfig(method="maml")
    settings_of_all = common_settings(start)
    usual_shots = "1,5" if base is None else str(base.shots)

    def compare(
        out: Path,
        settings: Any = settings_of_all,
        config: Path | None = None,
        methods: str = "all",
        shots: str = usual_shots,
        seeds: str = "3",
        lr: str | None = None,
        search: str | None = None,
        search_geometry: str | None = None,
        search_iterations: int = 1_000,
        search_tasks: int = 200,
        recipes: Recipes = "common",
        controls: bool = True,
        test_tasks: int = 600,
        jobs: int = 1,
        device: str = "auto",
        data_dir: Path | None = None,
        json: bool = False,
    ) -> None:
        """Trains methods x shots x seeds under one protocol and writes the paper's table.

        Started again with the same words, it goes on where it stopped.

        Args:
            out: where runs, tables and the report go.
            settings: of every run.
            config: a file to start from, RUN/config.json or one of configs/; flags override it.
            methods: all, or names such as maml,blockiaf:variant=released.
            shots: labelled examples a class, a group of columns each, such as 1,5.
            seeds: how many, with exceptions by row, such as 1,maml=3,blockiaf=3.
            lr: inner step size, with exceptions by row, such as 0.05,maml=0.1.
            search: inner step sizes to choose from on validation tasks, such as 0.01,0.03,0.1.
            search_geometry: with --search, outer rates to choose from as well for what is
                learned beside the start, such as 0.001,0.0003.
            search_iterations: outer steps of each run of the search.
            search_tasks: validation tasks that choose.
            recipes: train all methods alike, or each as its authors did where that is known.
            controls: add the rows without which nobody can say that a geometry helped.
            test_tasks: the same for all rows.
            jobs: runs at a time; they share the cores.
            device: auto (CUDA, MPS or CPU, in this order), or one of them.
            data_dir: where the data are, if not in the usual place.
            json: print one JSON document.
        """
        common = asdict(settings)
        if common["data"].startswith("folder:"):
            common["data"] = absolute_folder(common["data"])
        base = RunConfig(method="maml", **common, lr=start.lr)
        chosen = None
        if search is not None:
            if lr is not None:
                raise ValueError(f"lr is {lr} and search is {search}: give one of them")
            candidates = read_numbers("search", search, float)
            chosen = Search(candidates, search_iterations, search_tasks)
        if search_geometry is not None:
            if chosen is None or base.geometry_lr is not None:
                raise ValueError(
                    f"search_geometry is {search_geometry}, search {search} and geometry_lr "
                    f"{base.geometry_lr}: it goes with search, and in place of geometry_lr"
                )
            beside = read_numbers("search_geometry", search_geometry, float)
            chosen = replace(chosen, geometry=beside)
        spec = Spec(
            base=base,
            methods=read_methods(methods),
            shots=read_numbers("shots", shots, int),
            out=out,
            seeds=seeds,
            lr=lr or "",
            recipes=recipes,
            controls=controls,
            test_tasks=test_tasks,
            search=chosen,
            device=device,
            data_dir=data_dir,
        )
        with LocalLauncher(jobs) as launcher:
            table = run_comparison(spec, launcher, write_tables)
        write_report(out, data_dir=data_dir)
        if json:
            print(to_json(table))
            return
        show(table, Console())
        print(f"written: {out / 'table.md'} (.csv, .tex, .json) and {out / 'report.html'}")

    compare.__annotations__["settings"] = Annotated[type(settings_of_all), tyro.conf.arg(name="")]
    return compare


def quickstart(minutes: float = 6.0, out: Path = Path("quickstart")) -> None:
    """Meta-trains every method on built-in letters, prints a table and writes a report.

    Needs no data and no download.

    Args:
        minutes: how long it may take, on two cores.
        out: where the runs, the tables and the report go.
    """
    began = time.monotonic()
    table = run_quickstart(minutes, out)
    write_tables(out, table)
    # On a busy machine, the geometries of some runs have to wait for `metamirror report`.
    left = 60 * minutes - (time.monotonic() - began)
    write_report(out, inspect_seconds=max(left, SECONDS_AT_THE_END))
    show(table, Console())
    print(f"written: {out / 'report.html'}, {out / 'table.md'}. Next, for example:")
    for command in commands_after(table, out):
        print(f"  {program()} {command}")


def program() -> str:
    """How a shell here calls this program: `make quickstart` leaves its venv off the path."""
    if shutil.which("metamirror"):
        return "metamirror"
    python = Path(sys.executable)
    if python.is_relative_to(Path.cwd()):
        python = python.relative_to(Path.cwd())
    return f"{shlex.quote(str(python))} -m metamirror"


def commands_after(table: dict[str, Any], out: Path) -> list[str]:
    """What to try after the quickstart, with runs that it has finished."""
    runs = {
        row["method"]: shlex.quote(str(out / seed["run"]))
        for row in table["rows"]
        for seed in row["seeds"]
        if seed["run"]
    }
    some = next(iter(runs.values()), None)
    commands = [
        f"inspect {runs.get('gradnet', some)}",
        f"evaluate {runs.get('blockiaf', some)} --steps 10 --norm inductive",
    ]
    return [
        *(commands if runs else []),
        "compare --data glyphs --methods maml,metasgd,blockiaf,gradnet --shots 1 --seeds 3 "
        "--width 16 --lr 0.1 --iterations 1000 --jobs 2 --out glyphs",
    ]


def cost(
    shape: str = "omniglot",
    ways: int = 5,
    shots: int = 5,
    width: int = 64,
    methods: str = "all",
    steps: int = 5,
    tasks: int = 4,
    rounds: int = ROUNDS,
    threads: int | None = None,
    recompute: bool = False,
    json: bool = False,
) -> None:
    """Measures what each method costs on this machine, on random pictures; needs no data.

    Args:
        shape: of a picture: omniglot, mini-imagenet, or channels x height x width as in 3x32x32.
        ways: classes of a task.
        shots: support pictures a class; there are 15 query pictures a class.
        width: filters of each layer of the conv4.
        methods: all, or a list with commas; options may follow, as in blockiaf:variant=released.
        steps: inner steps.
        tasks: of one iteration.
        rounds: how often each method takes turns with MAML.
        threads: of torch; by default as many as torch takes here.
        recompute: build inner steps' graphs anew when needed: less memory, more time.
        json: print one JSON document.
    """
    work = Workload(
        shape=parse_shape(shape),
        ways=ways,
        shots=shots,
        width=width,
        steps=steps,
        tasks=tasks,
        recompute=recompute,
    )
    found = measure_cost(work, parse_methods(methods), rounds=rounds, threads=threads)
    found["shape"] = shape
    if json:
        print(to_json(found))
        return
    Console().print(cost_table(found))
    idle = found["rows"][0]["idle_mb"]
    print(
        f"Peak memory is that of all processes of a method; MAML's held {idle:.0f} MB at the start."
    )
