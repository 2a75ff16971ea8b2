"""The tables of README and docs/, from the files in results/.

    python benchmarks/pages.py --write    # puts them where they belong
    python benchmarks/pages.py            # only says which pages are out of date

Each table stands between `<!-- NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import convergence_table
import embeddings
import export_figures
import familiarity
import faults_table
import float32
import method_table
import photo_times
import pilots_table
import playground_figures
import speed_table
import starts
from metamirror.core.files import write_atomically
from study import CURVES, STUDY

ROOT = Path(__file__).parents[1]
Tables = Mapping[str, Callable[[Path], str]]


def comparison(name: str, results: Path) -> str:
    """A table of the study, as `metamirror compare` wrote it."""
    file = results / "study" / name / "table.md"
    return file.read_text().strip() if file.exists() else speed_table.NOTHING


PAGES: Mapping[str, Tables] = {
    "README.md": {
        "results/quickstart: metamirror quickstart": method_table.quickstart,
        "results/study: python benchmarks/study.py run": method_table.pictures,
        "results/sinusoid: make sinusoid": method_table.sinusoid,
    },
    "docs/choosing.md": {"methods": method_table.registry, "measured": method_table.measured},
    "docs/speed.md": speed_table.TABLES,
    "docs/gotchas.md": {"results/float32.json": float32.table},
    "docs/reliability.md": faults_table.TABLES,
    "docs/adapting.md": {
        "results/starts.json: make starts": starts.table,
        "results/familiarity.json: python benchmarks/familiarity.py": familiarity.table,
    },
    "docs/features.md": {
        f"results/{name}.json: python benchmarks/embeddings.py": partial(
            embeddings.table, f"{name}.json"
        )
        for name in ("embeddings", "photos")
    }
    | {"results/photo_times.json: python benchmarks/photo_times.py": photo_times.table},
    "docs/deploy.md": {"results/export.json: make results/export.json": export_figures.table},
    "docs/playground.md": {
        "results/playground.json: make results/playground.json": playground_figures.figures
    },
    "docs/reproduce.md": {
        **{f"study {name}": partial(comparison, name) for name in STUDY},
        "pilots": pilots_table.table,
        **{f"convergence {name}": partial(convergence_table.table, name) for name in CURVES},
    },
}


def filled(page: str, tables: Tables, results: Path) -> str:
    """The page with every table made anew."""
    for name, table in tables.items():
        text = f"<!-- {name} -->\n{table(results)}\n<!-- end -->"
        pattern = re.compile(rf"<!-- {name} -->\n.*?<!-- end -->", re.DOTALL)
        if not pattern.search(page):
            raise ValueError(f"the page has no place for the table {name!r}")
        page = pattern.sub(lambda _, text=text: text, page)
    return page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="put the tables into the pages")
    write = parser.parse_args().write
    old = []
    for name, tables in PAGES.items():
        page = (ROOT / name).read_text()
        new = filled(page, tables, ROOT / "results")
        if new != page:
            old.append(name)
            if write:
                write_atomically(ROOT / name, new.encode())
    if old and not write:
        sys.exit(f"out of date: {', '.join(old)}; python benchmarks/pages.py --write")


if __name__ == "__main__":
    main()
