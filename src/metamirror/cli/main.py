"""The command line. A user's mistake ends with exit code 2 and a line that says what to do."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import platform
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Union

import torch
import tyro
from rich.console import Console
from rich.table import Table

from metamirror._version import __version__
from metamirror.cli.adapt import ADAPT_COMMANDS
from metamirror.cli.data import DATA_COMMANDS
from metamirror.cli.experiments import compare_from, cost, quickstart
from metamirror.cli.playground import playground
from metamirror.cli.report import REPORT_COMMANDS
from metamirror.console import say
from metamirror.core.learner import Norm
from metamirror.data.own_folder import absolute_folder, parse_folder
from metamirror.experiments.inspection import inspect_run
from metamirror.methods import METHODS
from metamirror.models import Conv4
from metamirror.parallel.allocator import memory_ran_out, tune_allocator
from metamirror.report.figures.geometry import describe_geometry, plot_geometry
from metamirror.storage.atomic import to_json
from metamirror.training.config import RunConfig, load_config
from metamirror.training.evaluate import evaluate_run
from metamirror.training.factory import extra_parameters
from metamirror.training.train import train as run_training

RunFolder = Annotated[Path, tyro.conf.Positional]
DEFAULTS = RunConfig(method=tyro.MISSING)


def methods(json: bool = False) -> None:
    """Lists the methods: optimiser, geometry, paper, extra parameters on conv4-64 at 84x84.

    Args:
        json: print one JSON document instead of a table.
    """
    with torch.device("meta"):
        model = Conv4(ways=5, channels=3, image_size=84, width=64)
    rows: list[dict[str, Any]] = []
    for key, method in METHODS.items():
        rows.append(
            {
                "method": key,
                "title": method.title,
                "optimizer": method.optimizer,
                "geometry": method.geometry,
                "paper": method.paper,
                "extra_parameters": extra_parameters(key, model),
                "options": [field.name for field in fields(method.options)],
            }
        )
    if json:
        _print_json(rows)
        return
    table = Table(title="Extra parameters: beyond the start, on conv4-64 at 84x84, 5 ways")
    for column in ("method", "lower-level optimiser", "loss geometry", "paper", "extra parameters"):
        justify: Literal["left", "right"] = "right" if column == "extra parameters" else "left"
        table.add_column(column, justify=justify, overflow="fold")
    for row in rows:
        values = (row["method"], row["optimizer"], row["geometry"], row["paper"])
        table.add_row(*values, f"{row['extra_parameters']:,}")
    Console().print(table)
    print("Options, as in METHOD:option=value:")
    for row in rows:
        if row["options"]:
            print(f"  {row['method']}: {', '.join(row['options'])}")


def train_from(base: RunConfig) -> Callable[..., None]:
    """The command `train` with the settings that its flags start from."""

    def train(
        settings: Annotated[RunConfig, tyro.conf.arg(name="")] = base,
        config: Path | None = None,
        out: Path | None = None,
        resume: bool = False,
        device: str = "auto",
        data_dir: Path | None = None,
        tensorboard: bool = False,
        processes: int | None = None,
    ) -> None:
        """Meta-trains one method and leaves a run folder; torchrun spreads it over processes.

        Args:
            settings: the run's settings.
            config: a file to start from, RUN/config.json or one of configs/; flags override it.
            out: the run folder; by default runs/DATA-METHOD-SHOTSshot-seedSEED.
            resume: go on from the last checkpoint; a folder that does not exist starts a new run.
            device: auto (CUDA, MPS or CPU, in this order), or one of them.
            data_dir: where the data are, if not in the usual place.
            tensorboard: write TensorBoard events as well.
            processes: that share the tasks of a step on CPUs; by default as many as make it
                fastest. Results do not depend on it.
        """
        folder = out or default_folder(settings)
        if settings.data.startswith("folder:"):
            # The run must find its pictures from wherever it is asked for.
            settings = replace(settings, data=absolute_folder(settings.data))
        run_training(
            settings,
            folder,
            resume=resume,
            device=device,
            data_dir=data_dir,
            tensorboard=tensorboard,
            processes=processes,
        )
        if os.environ.get("RANK", "0") == "0":
            print(f"done: {folder}; next: metamirror evaluate {folder}")

    return train


def default_folder(config: RunConfig) -> Path:
    """Where a run goes that was not told where."""
    name = config.method.replace(":", "-").replace("=", "-")
    data = config.data
    if data.startswith("folder:"):
        data = parse_folder(data)[0].resolve().name
    data = re.sub(r"[^A-Za-z0-9.-]+", "-", data)
    return Path("runs") / f"{data}-{name}-{config.shots}shot-seed{config.seed}"


def given_values(arguments: Sequence[str]) -> dict[str, str]:
    """What stands behind each flag, before it is known which flags there are."""
    given = dict(pairwise(arguments))
    for word in arguments:
        flag, equals, value = word.partition("=")
        if equals:
            given[flag] = value
    return given


def base_settings(arguments: Sequence[str]) -> RunConfig:
    """What the flags of `train` override: a file, or the run that is to be continued."""
    given = given_values(arguments)
    if "--config" in given:
        return load_config(Path(given["--config"]))
    if "--resume" in given or "--resume" in arguments:
        file = Path(given.get("--out", "")) / "config.json"
        if "--out" in given and file.is_file():
            return load_config(file)
    return DEFAULTS


def evaluate(
    run: RunFolder,
    split: str = "test",
    tasks: int = 600,
    steps: int | None = None,
    norm: Norm | None = None,
    queries: int | None = None,
    which: Literal["best", "last"] = "best",
    device: str = "auto",
    data_dir: Path | None = None,
    json: bool = False,
) -> None:
    """Adapts a trained run to fixed new tasks and reports the mean over them.

    Args:
        run: the run folder.
        split: train, val or test.
        tasks: how many tasks.
        steps: inner steps, if other than in training.
        norm: whose statistics normalise the query, if others than in training.
        queries: query examples a class, if others than in training.
        which: the learner with the best validation score, or the last one.
        device: auto (CUDA, MPS or CPU, in this order), or one of them.
        data_dir: where the data are, if not in the usual place.
        json: print one JSON document.
    """
    found = evaluate_run(
        run,
        split=split,
        tasks=tasks,
        steps=steps,
        norm=norm,
        queries=queries,
        which=which,
        device=device,
        data_dir=data_dir,
    )
    if os.environ.get("RANK", "0") != "0":
        return
    if json:
        _print_json(found)
        return
    measure, digits, unit = ("accuracy", 2, " %") if "accuracy" in found else ("mse", 4, "")
    print(
        f"{found['method']} on {found['data']}, {found['shots']}-shot, {found['steps']} steps, "
        f"{found['tasks']} {split} tasks, {found['norm']}: "
        f"{measure} {found[measure]:.{digits}f} ± {found['ci95']:.{digits}f}{unit}"
    )


def inspect(
    run: RunFolder,
    tasks: int = 4,
    points: int = 4,
    plot: Path | None = None,
    data_dir: Path | None = None,
    json: bool = False,
) -> None:
    """Says what geometry a run has learned, and whether it is a valid mirror map.

    Args:
        run: the run folder.
        tasks: validation tasks whose adaptation is looked at.
        points: points at which the map's Jacobian is measured.
        plot: where the picture goes; by default geometry.png in the run folder.
        data_dir: where the data are, if not in the usual place.
        json: print one JSON document.
    """
    found = inspect_run(run, tasks=tasks, points=points, data_dir=data_dir)
    picture = plot or run / "geometry.png"
    plot_geometry(found, picture)
    if json:
        _print_json(found)
        return
    for line in describe_geometry(found):
        print(line)
    print(f"picture: {picture}")


def version() -> None:
    """Prints what a report of a mistake should begin with."""
    python, found = platform.python_version(), torch.__version__
    print(f"metamirror {__version__} (Python {python}, torch {found})")


Command = Callable[..., None]


@dataclass(frozen=True)
class Group:
    """Commands under one name."""

    title: str
    commands: Mapping[str, Command]


COMMANDS: dict[str, Command | Group] = {
    "methods": methods,
    "data": Group("Data sets: what there is, what is installed, and how it looks.", DATA_COMMANDS),
    "train": train_from(DEFAULTS),
    "evaluate": evaluate,
    **REPORT_COMMANDS,
    "cost": cost,
    "inspect": inspect,
    "compare": compare_from(None),
    "quickstart": quickstart,
    **ADAPT_COMMANDS,
    "playground": playground,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code."""
    try:
        parse(arguments)()
    except BrokenPipeError:
        # The reader has seen enough, as in `metamirror methods | head`: nothing to report.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, OSError, MemoryError) as error:
        # Under torchrun several processes may complain, each for itself.
        rank = f"rank {os.environ['RANK']}: " if os.environ.get("WORLD_SIZE", "1") != "1" else ""
        say(f"{rank}{error or 'memory ran out'}")
        return 2
    except RuntimeError as error:
        if not memory_ran_out(error):
            raise
        say(f"memory ran out: {str(error).splitlines()[0]}")
        return 2
    except KeyboardInterrupt as stop:
        say("interrupted")
        return getattr(stop, "code", 130)
    return 0


def parse(arguments: Sequence[str] | None) -> Callable[[], None]:
    """The command that the arguments ask for, ready to run."""
    complaint = io.StringIO()
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words == ["--version"]:
        return version
    commands = COMMANDS
    if words[:1] == ["train"]:
        commands = {**COMMANDS, "train": train_from(base_settings(words))}
    elif words[:1] == ["compare"] and (file := given_values(words).get("--config")):
        commands = {**COMMANDS, "compare": compare_from(load_config(Path(file)))}
    try:
        with contextlib.redirect_stderr(complaint):
            command: Callable[[], None] = tyro.cli(
                _choice(commands),
                prog="metamirror",
                description="Meta-learning with learned loss geometries; --version says which one.",
                args=words,
                config=(tyro.conf.OmitSubcommandPrefixes,),
            )
            return command
    except SystemExit as stop:
        if not stop.code:
            raise
        # tyro draws a box around its complaint; a plain line serves terminals and logs alike.
        plain = re.sub(r"[\u2500-\u257f]|-{3,}", " ", complaint.getvalue()).split()
        raise ValueError(" ".join(plain)) from None


def _choice(commands: Mapping[str, Command | Group]) -> Any:
    """One of several commands, as the type that tyro makes sub-commands of."""
    return Union[  # noqa: UP007 - made at run time
        tuple(
            Annotated[
                Any,
                tyro.conf.subcommand(
                    name, constructor=_group(c) if isinstance(c, Group) else _deferred(c)
                ),
            ]
            for name, c in commands.items()
        )
    ]


def _group(group: Group) -> Callable[..., Any]:
    def choose(command: Any) -> Any:
        return command

    choose.__doc__ = group.title
    choose.__annotations__["command"] = Annotated[_choice(group.commands), tyro.conf.arg(name="")]
    return choose


def _deferred(function: Callable[..., None]) -> Callable[..., Callable[[], None]]:
    """The function with its arguments bound, so that parsing and running are told apart."""

    @functools.wraps(function)
    def bind(*args: Any, **kwargs: Any) -> Callable[[], None]:
        return functools.partial(function, *args, **kwargs)

    return bind


def _print_json(value: object) -> None:
    print(to_json(value))


def entry() -> None:
    """What the installed `metamirror` command runs."""
    tune_allocator()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # What an old terminal cannot show, such as ±, must not cost the result that it stands in.
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.exit(main())
