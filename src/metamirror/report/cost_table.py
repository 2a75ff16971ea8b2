"""The table of `metamirror cost`, for a terminal."""

from typing import Any

from rich.table import Table as Screen

from metamirror.report.tables import Cell, Table, on_screen


def cost_table(found: dict[str, Any]) -> Screen:
    """Return what `metamirror.experiments.cost.measure_cost` found, for a terminal."""
    columns = {
        "method": "{method}",
        "ms / iteration": "{ms_per_iteration:.0f}",
        "/ MAML": "{relative_to_maml:.2f}",
        "95 %": "{ci95[0]:.2f}-{ci95[1]:.2f}",
        "peak MB": "{peak_mb:.0f}",
        "extra parameters": "{extra_parameters:,}",
    }
    rows = [[Cell(text.format(**row)) for text in columns.values()] for row in found["rows"]]
    kinds = dict.fromkeys(columns, "number") | {"method": ""}
    screen = on_screen(kinds, {"": Table(kinds, rows)}, 0)
    screen.title = (
        f"conv4-{found['width']} on {found['shape']}, {found['ways']}-way "
        f"{found['shots']}-shot, {found['steps']} steps, {found['tasks']} tasks, "
        f"{found['threads']} threads, {found['rounds']} rounds, torch {found['torch']} on "
        f"{found['device']} ({found['device_name']})"
    )
    return screen
