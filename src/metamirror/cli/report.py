"""`metamirror convergence` and `metamirror report`."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import tyro

from metamirror.cli.arguments import DataDir, Imports, Json, flags_of
from metamirror.core.files import to_json
from metamirror.experiments.convergence import convergence as measure_convergence
from metamirror.report.figures.convergence import (
    NAME,
    describe_convergence,
    write_figure,
    write_numbers,
)
from metamirror.report.page import write_report
from metamirror.training.user_modules import import_modules


def convergence(
    out: Path,
    measurement: Annotated[partial[dict[str, Any]], flags_of(measure_convergence, "on_curve")],
    imports: Imports = (),
    json: Json = False,
) -> None:
    """Draw the paper's figure: support loss, gradient norm and accuracy against the inner step k.

    All runs adapt to the same new tasks. Runs that differ in their seed alone are one curve. Where
    a run of maml is among them: whether the loss at k = 0 is lower than MAML's, whether gradient
    norms are comparable, and in how many steps MAML's last support loss is reached.

    Args:
        out: the folder that convergence.svg, .png, .csv and .json go to.
    """
    import_modules(imports)
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file: choose another folder with --out")
    found: dict[str, Any] = {}

    def keep(now: dict[str, Any]) -> None:
        out.mkdir(parents=True, exist_ok=True)
        write_numbers(now, out)
        found.update(now)

    try:
        measurement(on_curve=keep)
    finally:
        # An interruption leaves the figure of what was finished.
        if found:
            write_figure(found, out)
    if json:
        print(to_json(found))
        return
    for line in describe_convergence(found):
        print(line)
    print(f"figure: {out / NAME}.svg and .png; numbers: {NAME}.csv and .json beside it")


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
