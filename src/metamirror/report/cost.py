"""The cost of methods as a table for people."""

from __future__ import annotations

from typing import Any

from rich.table import Table


def cost_table(found: dict[str, Any]) -> Table:
    """A table of what `metamirror.experiments.cost.measure_cost` found."""
    table = Table(
        title=f"conv4-{found['width']} on {found['shape']}, {found['ways']}-way "
        f"{found['shots']}-shot, {found['steps']} steps, {found['tasks']} tasks, "
        f"{found['threads']} threads, {found['rounds']} rounds"
    )
    table.add_column("method", overflow="fold")
    for column in ("ms / iteration", "/ MAML", "95 %", "peak MB", "extra parameters"):
        table.add_column(column, justify="right")
    for row in found["rows"]:
        low, high = row["ci95"]
        table.add_row(
            row["method"],
            f"{row['ms_per_iteration']:.0f}",
            f"{row['relative_to_maml']:.2f}",
            f"{low:.2f}-{high:.2f}",
            f"{row['peak_mb']:.0f}",
            f"{row['extra_parameters']:,}",
        )
    return table
