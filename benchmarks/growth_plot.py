"""The picture of benchmarks/growth.py: time above, memory below, one column a quantity.

python benchmarks/growth_plot.py results/growth.json growth.png
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FormatStrFormatter, LogLocator, NullLocator

from metamirror.core.files import read_json

COLOURS = {
    "28x28": "#2b6cb0",
    "84x84": "#c05621",
    "84x84, memory mode": "#2f855a",
}
COLUMNS = {
    "steps": "inner steps K",
    "shots": "shots",
    "width": "filters",
    "tasks": "tasks",
    "ranks": "ranks",
}
ROWS = (
    ("seconds", "time_slope", "seconds / iteration"),
    ("peak_mb", "memory_slope", "peak MB of a process"),
)


def plot(sweeps: list[dict], path: Path) -> None:
    # The same figures give the same file.
    matplotlib.rcParams["svg.hashsalt"] = "growth"
    figure = Figure(figsize=(14, 6), layout="constrained")
    axes = figure.subplots(2, len(COLUMNS), sharex="col", sharey="row", squeeze=False)
    for column, (varies, label) in enumerate(COLUMNS.items()):
        chosen = [sweep for sweep in sweeps if sweep["varies"] == varies]
        for row, (quantity, slope, unit) in enumerate(ROWS):
            axis = axes[row][column]
            axis.set(xscale="log", yscale="log")
            for sweep in chosen:
                title = sweep["title"].partition(", ")[2]
                axis.plot(
                    sweep["x"],
                    sweep[quantity],
                    marker="o",
                    color=COLOURS[title],
                    label=f"{title}: slope {sweep[slope]['log_log']:.2f}",
                )
            ticks = sorted({x for sweep in chosen for x in sweep["x"]})
            axis.xaxis.set_major_locator(FixedLocator(ticks))
            axis.xaxis.set_minor_locator(NullLocator())
            axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.yaxis.set_minor_locator(NullLocator())
            for side in (axis.xaxis, axis.yaxis):
                side.set_major_formatter(FormatStrFormatter("%g"))
            axis.grid(alpha=0.3)
            axis.legend(fontsize="small", frameon=False, loc="upper left")
            if column == 0:
                axis.set_ylabel(unit)
        axes[1][column].set_xlabel(label)
    figure.suptitle("One MAML iteration; both axes logarithmic, with the slope in them")
    top = max(s for sweep in sweeps for s in sweep["seconds"])
    axes[0][0].set_ylim(top=3 * top)
    most = max(m for sweep in sweeps for m in sweep["peak_mb"])
    axes[1][0].set_ylim(top=3 * most)
    figure.savefig(path, dpi=100, metadata={"Date": None} if path.suffix == ".svg" else None)


if __name__ == "__main__":
    plot(read_json(Path(sys.argv[1]))["sweeps"], Path(sys.argv[2]))
