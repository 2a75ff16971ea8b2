"""The tables of docs/speed.md and docs/growth.md, from results/; `pages.py` puts them there."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import bf16
import startup
from metamirror.core.files import read_json

NOTHING = "Not measured yet."


def markdown(columns: Iterable[str], rows: Iterable[Iterable[str]], words: int = 1) -> str:
    """The first columns hold words, the others figures."""
    lines = [list(columns)]
    lines += [["---"] * words + ["---:"] * (len(lines[0]) - words), *map(list, rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def with_interval(median: float, low: float, high: float) -> str:
    return f"{median:.2f} [{low:.2f}, {high:.2f}]"


def peers(results: Path) -> str:
    """Medians of every program, and ours against the fastest and the leanest of the others."""
    file = results / "peers.json"
    if not file.exists():
        return NOTHING
    rows = []
    for case, found in read_json(file)["cases"].items():
        programs = found["programs"]
        ours, fastest, leanest = (
            programs[name] for name in ("metamirror", found["fastest_peer"], found["leanest_peer"])
        )
        digits = 2 if ours["seconds"] > 0.2 else 4
        rows.append(
            (
                case,
                f"{ours['seconds']:.{digits}f}",
                f"{fastest['seconds']:.{digits}f} ({found['fastest_peer']})",
                f"**{with_interval(*found['time_against'][found['fastest_peer']])}**",
                f"{ours['peak_mb']:.0f}",
                f"{leanest['peak_mb']:.0f} ({found['leanest_peer']})",
                f"{found['memory_against_leanest']:.2f}",
            )
        )
    columns = (
        "case",
        "s",
        "fastest peer, s",
        "ratio",
        "peak MB",
        "leanest, MB",
        "ratio",
    )
    return markdown(columns, rows)


def every_peer(results: Path) -> str:
    """Our time against each program's, case by case."""
    file = results / "peers.json"
    if not file.exists():
        return NOTHING
    cases = read_json(file)["cases"]
    names = list(dict.fromkeys(name for found in cases.values() for name in found["time_against"]))
    rows = [
        (
            case,
            *(
                with_interval(*found["time_against"][name]) if name in found["programs"] else ""
                for name in names
            ),
        )
        for case, found in cases.items()
    ]
    return markdown(("case", *names), rows)


def cost(results: Path) -> str:
    """What each method takes against MAML, and its memory, in every case that was measured."""
    files = sorted(results.glob("cost-*.json"))
    if not files:
        return NOTHING
    cases = [read_json(file) for file in files]
    by_method = [{row["method"]: row for row in case["rows"]} for case in cases]
    columns = ["method", "extra parameters"]
    for case in cases:
        columns += [f"{case['shape']}, {case['shots']}-shot", "peak MB"]
    rows = []
    for method in dict.fromkeys(name for rows in by_method for name in rows):
        present = [case.get(method) for case in by_method]
        extra = " / ".join(dict.fromkeys(f"{row['extra_parameters']:,}" for row in present if row))
        cells = [f"`{method}`", extra]
        for row in present:
            if row is None:
                cells += ["", ""]
            elif method == "maml":
                cells += [f"{row['ms_per_iteration']:.0f} ms", f"{row['peak_mb']:.0f}"]
            else:
                ratio = with_interval(row["relative_to_maml"], *row["ci95"])
                cells += [ratio, f"{row['peak_mb']:.0f}"]
        rows.append(cells)
    return markdown(columns, rows)


def growth(results: Path) -> str:
    """Both slopes of every sweep, and what the memory mode saves."""
    file = results / "growth.json"
    if not file.exists():
        return NOTHING
    found = read_json(file)
    rows = []
    for sweep in found["sweeps"]:
        time, memory = sweep["time_slope"], sweep["memory_slope"]
        rows.append(
            (
                f"{sweep['title']}: {sweep['x'][0]} to {sweep['x'][-1]}",
                f"{sweep['seconds'][0]:.2f} to {sweep['seconds'][-1]:.2f}",
                f"{1000 * time['per_unit']:.3g}",
                f"{time['log_log']:.2f}",
                f"{sweep['peak_mb'][0]:.0f} to {sweep['peak_mb'][-1]:.0f}",
                f"{memory['per_unit']:.3g}",
                f"{memory['log_log']:.2f}",
            )
        )
    columns = (
        "what varies",
        "s",
        "ms a unit",
        "log-log",
        "peak MB",
        "MB a unit",
        "log-log",
    )
    mode = found["memory_mode"]
    return (
        f"{markdown(columns, rows)}\n\n"
        f"At 84x84, K = 20 in the memory mode takes {mode['lean_20_against_lean_5']:.2f} times the "
        f"peak of K = 5 in the same mode, and\n{mode['lean_20_against_usual_5']:.2f} times that of "
        f"K = 5 without it. Without the mode, K = 20 takes {mode['usual_20_against_usual_5']:.2f} "
        f"times the peak of K = 5."
    )


TABLES = {"peers": peers, "every peer": every_peer, "cost": cost}
GROWTH_TABLES = {"growth": growth, "startup": startup.table, "bf16": bf16.table}
