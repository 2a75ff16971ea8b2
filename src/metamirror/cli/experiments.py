"""`metamirror compare`, `quickstart`, `cost`, `convergence` and `report`."""

import shlex
import shutil
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from metamirror.cli.arguments import DataDir, Imports, Json, flags_of
from metamirror.core.files import to_json
from metamirror.data.sizes import Count
from metamirror.experiments.comparison.compare import compare as run_comparison
from metamirror.experiments.comparison.launchers.registry import open_launcher
from metamirror.experiments.comparison.search import Search
from metamirror.experiments.comparison.spec import Spec, read_counts, read_methods, read_numbers
from metamirror.experiments.convergence import convergence as measure_convergence
from metamirror.experiments.cost import Workload, measure_cost, parse_methods, parse_shape
from metamirror.experiments.quickstart import SECONDS_AT_THE_END
from metamirror.experiments.quickstart import quickstart as run_quickstart
from metamirror.report.cost_table import cost_table
from metamirror.report.figures import convergence as figures
from metamirror.report.page import write_report
from metamirror.report.tables import show, write_tables
from metamirror.training.config import RunConfig, located
from metamirror.training.logs.registry import read_trackers
from metamirror.training.user_modules import import_modules, with_imports


@dataclass(frozen=True)
class Settings(RunConfig):
    """The settings that all runs of a comparison share; `compare` has flags for the rest."""

    # tyro wants a name for each field, also where it is no flag.
    method: Annotated[str, tyro.conf.Fixed, tyro.conf.arg(name="any-method")] = "maml"
    shots: Annotated[Count, tyro.conf.Fixed, tyro.conf.arg(name="any-shots")] = RunConfig.shots
    seed: Annotated[int, tyro.conf.Fixed, tyro.conf.arg(name="any-seed")] = RunConfig.seed
    lr: Annotated[float | None, tyro.conf.Fixed, tyro.conf.arg(name="any-lr")] = RunConfig.lr
    imports: tyro.conf.Fixed[tuple[str, ...]] = ()
    epochs: tyro.conf.Fixed[int | None] = None
    batch: tyro.conf.Fixed[int | None] = None


def settings_of(config: RunConfig) -> Settings:
    """Return what flags of `compare` override."""
    return Settings(**asdict(config))


def compare(
    out: Path,
    settings: Annotated[Settings, tyro.conf.arg(name="")],
    comparison: Annotated[
        partial[Spec], flags_of(Spec, "base", "methods", "shots", "out", "lr", "search", seeds="3")
    ],
    config: Path | None = None,
    methods: str = "all",
    shots: str | None = None,
    lr: str | None = None,
    search: str | None = None,
    search_geometry: str | None = None,
    search_iterations: int = 1_000,
    search_tasks: int = 200,
    jobs: int | None = None,
    launcher: str = "local",
    imports: Imports = (),
    json: Json = False,
) -> None:
    """Train methods x shots x seeds under one protocol and write the paper's table.

    Started again with the same arguments, it continues where it stopped; with others, such as more
    seeds, also while the first still runs. `metamirror compare --status DIR` shows what runs where,
    `metamirror compare --stop DIR` ends it.

    Args:
        out: where runs, tables and the report go.
        config: a file to start from, RUN/config.json or one of configs/; flags override it.
        methods: all, or names such as maml,blockiaf:variant=released.
        shots: labelled examples a class, such as 1,5 or 1-10, a group of columns each; by default
            1,5 or the file's.
        lr: inner learning rate, with exceptions by row, such as 0.05,maml=0.1.
        search: inner learning rates to choose from on validation tasks, such as 0.01,0.03,0.1.
        search_geometry: with --search, the outer learning rates of the geometry parameters to
            choose from as well, such as 0.001,0.0003 (MAML has none).
        search_iterations: outer steps of each run of the search.
        search_tasks: validation tasks that choose.
        jobs: runs at a time on this machine; they share the cores. Short for local:jobs=J.
        launcher: where runs are computed: local:jobs=2, ray:address=HOST:PORT,cpus=2,gpus=0.5 or
            slurm:partition=P,time=08:00:00,cpus=2,gpus=1.
    """
    if jobs is not None:
        if launcher != "local":
            raise ValueError(f"jobs is {jobs} and launcher {launcher}: give one of them")
        launcher = f"local:jobs={jobs}"
    import_modules(imports)
    base = RunConfig(**{**asdict(settings), "method": "maml", "seed": 0, "imports": ()})
    base = located(with_imports(base, imports))
    if shots is None:
        shots = "1,5" if config is None else str(base.shots)
    if search is not None and lr is not None:
        raise ValueError(f"lr is {lr} and search is {search}: give one of them")
    beside: tuple[float, ...] = ()
    if search_geometry is not None:
        if search is None or base.geometry_lr is not None:
            raise ValueError(
                f"search_geometry is {search_geometry}, search {search} and geometry_lr "
                f"{base.geometry_lr}: it goes with search, and in place of geometry_lr"
            )
        beside = read_numbers("search_geometry", search_geometry, float)
    searched = None
    if search is not None:
        rates = read_numbers("search", search, float)
        searched = Search(rates, search_iterations, search_tasks, beside)
    spec = comparison(
        base=replace(base, shots=RunConfig.shots),
        methods=read_methods(methods),
        shots=read_counts("shots", shots),
        out=out,
        lr=lr or "",
        search=searched,
    )
    written: list[str] = []

    def write(out: Path, table: dict[str, Any]) -> None:
        write_tables(out, table)
        written[:] = [f"{out / 'table.md'} (.csv, .tex, .json)"]

    with open_launcher(launcher) as launching:
        table = run_comparison(spec, launching, write)
    written.append(str(write_report(out, data_dir=spec.data_dir)))
    if json:
        print(to_json(table))
        return
    show(table, Console())
    print(f"written: {' and '.join(written)}")


def quickstart(minutes: float = 6.0, seed: int = 0, out: Path = Path("quickstart")) -> None:
    """Meta-train the methods of the paper and two more on built-in letters: a table, a report.

    Needs no data and no download.

    Args:
        minutes: how long it may take, on two cores.
        seed: the seed of the initialisation and of the training tasks.
        out: where the runs, the tables and the report go.
    """
    began = time.monotonic()
    table = run_quickstart(minutes, out, seed)
    write_tables(out, table)
    # On a busy machine, the geometries of some runs have to wait for `metamirror report`.
    left = 60 * minutes - (time.monotonic() - began)
    write_report(out, inspect_seconds=max(left, SECONDS_AT_THE_END))
    show(table, Console())
    print(f"written: {out / 'report.html'}, {out / 'table.md'}. Next, for example:")
    print(*(f"  {program()} {command}" for command in commands_after(table, out)), sep="\n")


def program() -> str:
    """Return how to call this program: `make quickstart` leaves its venv off the path."""
    if shutil.which("metamirror"):
        return "metamirror"
    python = Path(sys.executable)
    if python.is_relative_to(Path.cwd()):
        python = python.relative_to(Path.cwd())
    return f"{shlex.quote(str(python))} -m metamirror"


def commands_after(table: dict[str, Any], out: Path) -> list[str]:
    """Return what to try after the quickstart, with runs that it has finished."""
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
        "compare --data glyphs --methods maml,metasgd,blockiaf,gradnet --shots 1 --seeds 3 "
        "--width 16 --lr 0.1 --iterations 1000 --jobs 2 --out glyphs",
    ]
    return commands if runs else commands[-1:]


def cost(
    work: Annotated[partial[Workload], flags_of(Workload, "shape", "queries")],
    measurement: Annotated[
        partial[dict[str, Any]], flags_of(measure_cost, "work", "methods", "imports")
    ],
    shape: str = "omniglot",
    methods: str = "all",
    imports: Imports = (),
    json: Json = False,
) -> None:
    """Measure what each method costs on this machine, on random images; needs no data.

    There are 15 query images a class.

    Args:
        shape: omniglot, mini-imagenet, or channels x height x width of an image as in 3x32x32.
        methods: all, or a list with commas; options may follow, as in blockiaf:variant=released.
    """
    import_modules(imports)
    workload = work(shape=parse_shape(shape))
    found = measurement(workload, parse_methods(methods), imports=imports)
    found["shape"] = shape
    if json:
        print(to_json(found))
        return
    Console().print(cost_table(found))
    idle = found["rows"][0]["idle_mb"]
    print(
        f"Peak memory is that of all processes of a method; MAML's held {idle:.0f} MB at the start."
    )


def convergence(
    out: Path,
    measurement: Annotated[
        partial[dict[str, Any]], flags_of(measure_convergence, "on_curve", "launcher", "out")
    ],
    launcher: str | None = None,
    log: str = "",
    imports: Imports = (),
    json: Json = False,
) -> None:
    """Draw the paper's figure: support loss, gradient norm and accuracy against the inner step k.

    All runs adapt to the same new tasks. Runs that differ in their seed alone are one curve. Where
    a run of maml is among them: whether the loss at k = 0 is lower than MAML's, whether gradient
    norms are comparable, and in how many steps MAML's last support loss is reached.

    Args:
        out: the folder that convergence.svg, .png, .csv and .json go to.
        launcher: where runs are measured, as for compare; by default in this process.
        log: trackers that get the curves and the figure, such as tensorboard,mlflow,wandb,csv.
    """
    import_modules(imports)
    read_trackers(log)
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file: choose another folder with --out")
    found: dict[str, Any] = {}

    def keep(now: dict[str, Any]) -> None:
        out.mkdir(parents=True, exist_ok=True)
        figures.write_numbers(now, out)
        found.update(now)

    try:
        with ExitStack() as stack:
            given = None if launcher is None else stack.enter_context(open_launcher(launcher))
            measurement(on_curve=keep, launcher=given, out=out)
    finally:
        # An interruption leaves the figure of what was finished.
        if found:
            figures.write_figure(found, out)
    figures.send(found, out, log)
    name = figures.NAME
    where = f"figure: {out / name}.svg and .png; numbers: {name}.csv and .json beside it"
    print(to_json(found) if json else "\n".join([*figures.describe_convergence(found), where]))


def report(
    folder: Annotated[Path, tyro.conf.Positional],
    inspect_seconds: float = 60.0,
    data_dir: DataDir = None,
    imports: Imports = (),
) -> None:
    """Write one self-contained HTML page, report.html, from a folder of runs.

    It shows the table of a comparison, learning curves, convergence.json and cost.json where they
    are, the geometry that was learned and every configuration. Runs that are unfinished or damaged
    are named.

    Args:
        folder: the folder of the runs; the page goes into it.
        inspect_seconds: how long the learned geometries may be inspected; 0 for not at all.
    """
    import_modules(imports)
    print(f"written: {write_report(folder, inspect_seconds=inspect_seconds, data_dir=data_dir)}")
