"""`metamirror methods`, `train`, `evaluate` and `inspect`."""

import os
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from tyro.conf import arg

from metamirror.cli.arguments import DataDir, Imports, Json, RunFolder, flags_of
from metamirror.core.files import file_name, to_json
from metamirror.core.learner import Learner
from metamirror.core.metrics import metric_in
from metamirror.data.path_spec import find_path
from metamirror.data.sizes import in_words
from metamirror.experiments.comparison.table import plus_minus
from metamirror.methods import METHODS
from metamirror.methods.registry import GROUPS
from metamirror.models import Conv4
from metamirror.training.config import RunConfig, located
from metamirror.training.evaluate_run import evaluate_run
from metamirror.training.factory import extra_parameters
from metamirror.training.train import train as run_training
from metamirror.training.user_modules import import_flags, import_modules, with_imports


@dataclass(frozen=True)
class Settings(RunConfig):
    """The settings of a run that are flags of `train`."""

    imports: tyro.conf.Fixed[tuple[str, ...]] = ()
    epochs: tyro.conf.Fixed[int | None] = None
    batch: tyro.conf.Fixed[int | None] = None


def settings_of(config: RunConfig) -> Settings:
    """Return what flags of `train` override."""
    return Settings(**asdict(config))


def methods(imports: Imports = (), json: Json = False) -> None:
    """List the methods: optimiser, geometry, paper, extra parameters on conv4-64 at 84x84."""
    import_modules(imports)
    with torch.device("meta"):
        model = Conv4(ways=5, channels=3, image_size=84, width=64)
    rows: list[dict[str, Any]] = [
        {
            "method": key,
            "title": method.title,
            "group": method.group,
            "optimizer": method.optimizer,
            "geometry": method.geometry,
            "paper": method.paper,
            "reported": method.reported,
            "extra_parameters": extra_parameters(key, model),
            "options": [field.name for field in fields(method.options)],
        }
        for key, method in sorted(METHODS.items(), key=lambda m: list(GROUPS).index(m[1].group))
    ]
    if json:
        print(to_json(rows))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    # Without lines between columns, 80 characters have room for the longest words.
    title = "Extra parameters: beyond the start, on conv4-64 at 84x84, 5 ways"
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in ("method", "lower-level optimiser", "loss geometry", "paper"):
        table.add_column(column, overflow="fold")
    table.add_column("extra parameters", justify="right", overflow="fold")
    for group, title in GROUPS.items():
        members = [row for row in rows if row["group"] == group]
        if not members:
            continue
        table.add_section()
        table.add_row(title, style="italic")
        for row in members:
            words = (row[name] for name in ("method", "optimizer", "geometry"))
            table.add_row(*words, in_short(row["paper"]), f"{row['extra_parameters']:,}")
    Console().print(table)
    options = [f"  {row['method']}: {', '.join(row['options'])}" for row in rows if row["options"]]
    print("Options, as in METHOD:option=value:", *options, sep="\n")


def in_short(paper: str) -> str:
    """Return a paper with its first author alone, if it has more than two.

    >>> in_short("Finn, Abbeel, Levine 2017"), in_short("Lee, Choi 2018")
    ('Finn et al. 2017', 'Lee, Choi 2018')
    """
    authors, _, year = paper.rpartition(" ")
    names = authors.split(", ")
    return paper if len(names) < 3 else f"{names[0]} et al. {year}"


def train(
    settings: Annotated[Settings, arg(name="")],
    training: Annotated[partial[Learner], flags_of(run_training, "config", "out", processes=None)],
    config: Path | None = None,
    out: Path | None = None,
    imports: Imports = (),
) -> None:
    """Meta-train one method and leave a run folder; torchrun spreads it over processes.

    Args:
        config: a file to start from, RUN/config.json or one of configs/; flags override it.
        out: the run folder; by default runs/DATA-METHOD-SHOTSshot-seedSEED.
    """
    import_modules(imports)
    chosen = with_imports(RunConfig(**asdict(settings)), imports)
    folder = out or default_folder(chosen)
    training(located(chosen), folder)
    if os.environ.get("RANK", "0") == "0":
        print(f"done: {folder}; next: metamirror evaluate {folder} {import_flags(chosen)}".rstrip())


def default_folder(config: RunConfig) -> Path:
    """Return the folder of a run that was given none."""
    name = config.method.replace(":", "-").replace("=", "-")
    return Path("runs") / f"{in_file_name(config.data)}-{name}-{config.shots}shot-seed{config.seed}"


def in_file_name(data: str) -> str:
    """Return a data set's name, or that of its folder or file, as part of a file name."""
    if found := find_path(data):
        data = found.path.resolve().name.removesuffix(".npz")
    return file_name(data)


def evaluate(
    evaluation: Annotated[partial[dict[str, Any]], flags_of(evaluate_run, "every_step")],
    imports: Imports = (),
    json: Json = False,
) -> None:
    """Adapt a trained run to fixed new tasks and report the mean over them."""
    import_modules(imports)
    found = evaluation()
    if os.environ.get("RANK", "0") != "0":
        return
    measure = metric_in(found)
    unit = " %" if measure.percent else ""
    ways = "" if found["ways"] is None else f"{in_words(found['ways'], 'way')} "
    line = (
        f"{found['method']} on {found['data']}, {ways}{in_words(found['shots'], 'shot')}, "
        f"{found['steps']} steps, {found['tasks']} {found['split']} tasks, {found['norm']}: "
        f"{measure.name} {plus_minus(measure, found[measure.name], found['ci95'])}{unit}"
    )
    print(to_json(found) if json else line)


def inspect(
    run: RunFolder,
    tasks: int = 4,
    points: int = 4,
    plot: Path | None = None,
    data_dir: DataDir = None,
    imports: Imports = (),
    json: Json = False,
) -> None:
    """Report whether the learned geometry is a mirror map, with a counterexample if it is not.

    Args:
        tasks: validation tasks whose adaptation is inspected.
        points: points at which the map's Jacobian is measured.
        plot: the image file; by default geometry.png in the run folder.
    """
    from metamirror.experiments.inspection import inspect_run
    from metamirror.report.figures.geometry import describe_geometry, plot_geometry

    import_modules(imports)
    found = inspect_run(run, tasks=tasks, points=points, data_dir=data_dir)
    lines = describe_geometry(found)
    if found["effective_step_sizes"]:  # without an inner loop there is nothing to draw
        image = plot or run / "geometry.png"
        plot_geometry(found, image)
        lines.append(f"image: {image}")
    print(to_json(found) if json else "\n".join(lines))
