"""One self-contained HTML page from any folder of runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from metamirror._version import __version__
from metamirror.experiments.comparison.search import FOLDER as TRIALS
from metamirror.report.charts import marker_symbols
from metamirror.report.collect import Run, collect, documents
from metamirror.report.figures.convergence import NAME as CONVERGENCE
from metamirror.report.markup import Markup, join, tag
from metamirror.report.sections.geometry import geometry_section
from metamirror.report.sections.results import results_section
from metamirror.report.sections.runs import configurations_section, curves_section, runs_section
from metamirror.report.sections.search import search_section
from metamirror.report.sections.study import convergence_section, cost_section
from metamirror.report.stylesheet import stylesheet
from metamirror.storage.atomic import write_atomically
from metamirror.training.run_folder import CONFIG

PAGE = "report.html"
# The browser itself refuses whatever would leave the page, or run in it.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def write_report(
    folder: Path, *, inspect_seconds: float = 60.0, data_dir: Path | None = None
) -> Path:
    """Writes `report.html` into a folder of runs, from what stands in it and below it.

    Runs that are unfinished or damaged are named in the page.

    Args:
        folder: of the runs; table.json, search.json, convergence.json and cost.json in it and
            below it are shown as well.
        inspect_seconds: how long the learned geometries may be looked at; 0 for not at all.
        data_dir: where the data are, if not in the usual place.
    """
    runs = collect(folder)
    problems: list[str] = []
    results, searches, convergence, cost = (
        documents(folder, f"{name}.json", problems)
        for name in ("table", "search", CONVERGENCE, "cost")
    )
    # The short runs of a search have served their purpose: its scores are told.
    proper, trials = (
        [run for run in runs if _is_trial(run, searches) is trial] for trial in (False, True)
    )
    # A comparison whose runs have all failed to start still has its table.
    if not runs and not results:
        raise ValueError(
            f"{folder} holds no run: neither it nor a folder below it has a {CONFIG}; name a "
            f"folder that `metamirror train --out` or `compare --out` has written"
        )
    sections: dict[str, list[Markup]] = {
        "Results": _each(results, results_section),
        "Search for step sizes": _each(searches, search_section),
        "Runs": runs_section([*proper, *trials]) if runs else [],
        "Learning curves": curves_section(proper),
        "Convergence": _each(convergence, convergence_section),
        "Cost of a meta-iteration": _each(cost, cost_section),
        "Learned geometry": geometry_section(proper, inspect_seconds, data_dir),
        "Configurations": configurations_section([*proper, *trials]),
    }
    page = _page(folder.resolve().name, {k: v for k, v in sections.items() if v}, problems)
    path = folder / PAGE
    write_atomically(path, page.encode())
    return path


def _is_trial(run: Run, searches: Mapping[str, Any]) -> bool:
    """Whether a run belongs to a search that tells its score."""
    folder = Path(run.name).parent
    comparison = "" if folder.parent == Path() else str(folder.parent)
    return folder.name == TRIALS and comparison in searches


def _each(
    found: Mapping[str, dict[str, Any]], section: Callable[[dict[str, Any]], list[Markup]]
) -> list[Markup]:
    """A section for each document; those from folders below say from which."""
    return [
        part
        for where, content in found.items()
        for part in ([tag("h3", where)] if where else []) + section(content)
    ]


def _page(name: str, sections: dict[str, list[Markup]], problems: list[str]) -> str:
    identifiers = {title: title.lower().replace(" ", "-") for title in sections}
    links = [tag("li", tag("a", title, href=f"#{i}")) for title, i in identifiers.items()]
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="generator", content=f"metamirror {__version__}"),
        tag("title", f"{name} – metamirror"),
        # Our own text, in which nothing needs an escape.
        tag("style", Markup(stylesheet())),
    )
    body = tag(
        "body",
        marker_symbols(),
        tag(
            "header",
            tag("h1", name),
            tag(
                "p",
                f"A report of metamirror {__version__}, from what stands on disk.",
                class_="note",
            ),
            tag("nav", tag("ul", links)),
            [tag("p", problem, class_="problem") for problem in problems],
        ),
        tag(
            "main",
            [
                tag("section", tag("h2", title), join(parts), id=identifiers[title])
                for title, parts in sections.items()
            ],
        ),
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"
