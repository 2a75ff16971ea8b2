"""One self-contained HTML page from any folder of runs."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jinja2 import ChainableUndefined, Environment, PackageLoader

from metamirror._version import __version__
from metamirror.core.files import write_atomically
from metamirror.experiments.comparison.search import FOLDER as TRIALS
from metamirror.report import sections
from metamirror.report.charts import swatch
from metamirror.report.collect import Run, collect
from metamirror.training.run_folder import CONFIG

PAGE = "report.html"
UNPRINTABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
"""What HTML forbids, or what cannot be encoded: such as half a character in a file's name."""


def write_report(
    folder: Path, *, inspect_seconds: float = 60.0, data_dir: Path | None = None
) -> Path:
    """Write `report.html` into a folder of runs, from these and the documents in it and below it.

    The page names runs that are unfinished or damaged. Learned geometries may be inspected for
    `inspect_seconds`; 0 for not at all.
    """
    found = collect(folder)
    # A comparison whose runs have all failed to start still has its table.
    if not found.runs and not found.documents["table"]:
        raise ValueError(
            f"{folder} holds no run: neither it nor a folder below it has a {CONFIG}; name a "
            f"folder that `metamirror train --out` or `compare --out` has written"
        )

    def each(name: str, show: Callable[[dict[str, Any]], Any]) -> list[tuple[str, Any]]:
        return [(where, show(content)) for where, content in found.documents[name].items()]

    def is_trial(run: Run) -> bool:
        """Return whether a run belongs to a search whose scores are shown."""
        place = Path(run.name).parent
        comparison = "" if place.parent == Path() else str(place.parent)
        return place.name == TRIALS and comparison in found.documents["search"]

    # The short runs of a search have served their purpose: the page shows their scores.
    runs = sorted(found.runs, key=is_trial)
    proper = [run for run in runs if not is_trial(run)]
    inspected = sections.geometry(proper, inspect_seconds, data_dir)
    parts: list[tuple[str, str, list[tuple[str, Any]]]] = [
        ("Results", "results", each("table", sections.results)),
        ("Search for step sizes", "search", each("search", sections.search)),
        ("Runs", "runs", [("", sections.runs_table(runs))] if runs else []),
        ("Learning curves", "curves", list(sections.curves(proper))),
        ("Convergence", "convergence", each("convergence", sections.convergence)),
        ("Cost of a meta-iteration", "cost", each("cost", sections.cost)),
        ("Learned geometry", "geometry", [("", inspected)] if inspected else []),
        ("Configurations", "configurations", [("", sections.configurations(runs))] if runs else []),
    ]
    about = "from the files in this folder"
    path = folder / PAGE
    write_page(path, folder.resolve().name, about, parts, found.problems)
    return path


def write_page(
    path: Path,
    name: str,
    about: str,
    parts: Sequence[tuple[str, str, Sequence[tuple[str, Any]]]],
    problems: Sequence[str] = (),
) -> None:
    """Write a self-contained page.

    Args:
        path: its file.
        name: its title.
        about: what it was made from.
        parts: the title of each section, its template, and what that shows, with a heading where
            there is one; sections with nothing to show are left out.
        problems: lines at the top.
    """
    environment = Environment(
        loader=PackageLoader("metamirror.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        # A file beside the runs may lack any of its fields.
        undefined=ChainableUndefined,
    )
    environment.filters["figure"] = sections.figure
    environment.globals |= {"swatch": swatch, "estimate_in_words": sections.estimate_in_words}
    page = environment.get_template("page.html.j2").render(
        name=name,
        about=about,
        version=__version__,
        sections=[part for part in parts if part[2]],
        problems=problems,
    )
    write_atomically(path, UNPRINTABLE.sub("\ufffd", page).encode())
