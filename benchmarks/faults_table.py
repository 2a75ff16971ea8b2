"""The tables of docs/reliability.md, from what the campaign left in results/faults/."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from metamirror.core.files import read_json
from speed_table import NOTHING, markdown

FOLDER = "faults"


def read(results: Path, part: str) -> Any:
    file = results / FOLDER / f"{part}.json"
    found = read_json(file) if file.exists() else {}
    return None if found.get("unfinished") else found.get("found")


def kills(part: str, results: Path) -> str:
    found = read(results, part)
    if found is None:
        return NOTHING
    rows = [[what, str(row["kills"])] for what, row in found.items()]
    rows.append(["**together**", f"**{sum(row['kills'] for row in found.values())}**"])
    return markdown(["what was killed", "kills"], rows)


def disks(results: Path) -> str:
    found = read(results, "disks")
    if found is None:
        return NOTHING
    return markdown(["disk", "cases"], [[what, str(row["tried"])] for what, row in found.items()])


def fuzz(results: Path) -> str:
    found = read(results, "fuzz")
    if found is None:
        return NOTHING
    rows = []
    for what, row in found.items():
        refused = sum(n for end, n in row["outcomes"].items() if _is_refusal(end))
        share = f"{100 * refused / row['inputs']:.0f} %"
        rows.append([what, f"{row['inputs']:,}", share, f"{row['slowest_seconds']:.2f}"])
    total = sum(row["inputs"] for row in found.values())
    slowest = max(row["slowest_seconds"] for row in found.values())
    rows.append(["**together**", f"**{total:,}**", "", f"**{slowest:.2f}**"])
    return markdown(["what was read", "inputs", "refused by name", "slowest, s"], rows)


def _is_refusal(end: str) -> bool:
    return end.startswith(("refused", "status 4", "exit code 2", "connection closed"))


def soak(results: Path) -> str:
    found = read(results, "soak")
    if found is None:
        return NOTHING
    rows = [
        [
            what,
            f"{row['times']:,}",
            f"{row['first_mb']:.0f}",
            f"{row['last_mb']:.0f}",
            f"{100 * row['growth']:+.1f} %",
        ]
        for what, row in found.items()
    ]
    return markdown(["in one process", "times", "MB at first", "MB at last", "growth"], rows)


def determinism(results: Path) -> str:
    found = read(results, "determinism")
    if found is None:
        return NOTHING
    rows = [
        [
            what,
            "yes" if row["same_bits"] and row["same_bits_with_two_threads"] else "**no**",
            f"{row['largest_difference_of_1_and_2_threads']:.1g}",
        ]
        for what, row in found.items()
    ]
    headings = ["10 iterations of", "same bits twice", "largest difference of 1 and 2 threads"]
    return markdown(headings, rows)


def dependencies(results: Path) -> str:
    file = results / FOLDER / "dependencies.json"
    if not file.exists():
        return NOTHING
    found = read_json(file)
    asked = found["asked_for_vulnerabilities"]
    known = ", ".join(found["with_vulnerabilities"]) or "none"
    answers = (
        f"The database of vulnerabilities answered for {asked} of {found['pinned']} pins; with "
        f"known ones: {known}."
        if asked
        else f"The database of vulnerabilities could not be reached for any of the "
        f"{found['pinned']} pins: nothing is known of them from it."
    )
    withdrawn = ", ".join(found["withdrawn"]) or "none"
    return (
        f"{answers} Looked up in the package index: {found['looked_up_in_the_index']}; withdrawn "
        f"there: {withdrawn}."
    )


TABLES: Mapping[str, Callable[[Path], str]] = {
    "results/faults/kills.json": partial(kills, "kills"),
    "results/faults/workers.json": partial(kills, "workers"),
    "results/faults/disks.json": disks,
    "results/faults/fuzz.json": fuzz,
    "results/faults/soak.json": soak,
    "results/faults/determinism.json": determinism,
    "results/faults/dependencies.json: make audit": dependencies,
}
