"""The tables of README and docs/, and the pages of docs/studies, from the files in results/.

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

import embeddings
import export_figures
import familiarity
import faults_table
import findings
import float32
import method_table
import photo_times
import pilots_table
import playground_figures
import ray_scaling
import readme_listing
import speed_table
import starts
import study_page
from metamirror.core.files import write_atomically

ROOT = Path(__file__).parents[1]
Tables = Mapping[str, Callable[[Path], str]]


PAGES: Mapping[str, Tables] = {
    "README.md": {
        "results/readme_listing.json: python benchmarks/readme_listing.py": readme_listing.sentence,
        "found: python benchmarks/study.py run": findings.bullets,
    },
    "docs/choosing.md": {
        "methods": method_table.registry,
        "reported": method_table.reported,
    },
    "docs/measured.md": {
        "results/quickstart: metamirror quickstart": method_table.quickstart,
        "results/sinusoid: make sinusoid": method_table.sinusoid,
    },
    "docs/studies/pilots.md": {"pilots": pilots_table.table},
    "docs/speed.md": speed_table.TABLES,
    "docs/growth.md": speed_table.GROWTH_TABLES,
    "docs/numerics.md": {"results/float32.json": float32.table},
    "docs/reliability.md": faults_table.TABLES,
    "docs/cluster.md": {
        "results/ray_scaling.json: python benchmarks/ray_scaling.py": ray_scaling.table
    },
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
        "verdicts: python benchmarks/study.py run": findings.verdicts,
        "results: python benchmarks/study.py run": findings.accuracies,
        "older": findings.older,
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


def wanted(results: Path) -> dict[str, str]:
    """Every page that holds figures, as the files in results/ would have it."""
    pages = {
        name: filled((ROOT / name).read_text(), tables, results) for name, tables in PAGES.items()
    }
    studies = study_page.measured(results)
    return pages | {f"docs/studies/{name}.md": study_page.page(name, results) for name in studies}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="put the tables into the pages")
    write = parser.parse_args().write
    old = []
    for name, new in wanted(ROOT / "results").items():
        page = ROOT / name
        if not page.exists() or page.read_text() != new:
            old.append(name)
            if write:
                write_atomically(page, new.encode())
    if old and not write:
        sys.exit(f"out of date: {', '.join(old)}; python benchmarks/pages.py --write")


if __name__ == "__main__":
    main()
