"""Convergence for people and for programs: a figure, a table of numbers, a few sentences."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from metamirror.core.files import write_atomically, write_json
from metamirror.core.metrics import metric_in
from metamirror.report.charts import GREY, Series, draw_lines, save
from metamirror.report.collect import dicts_in, number
from metamirror.report.styles import styles_of
from metamirror.report.tables import csv_text
from metamirror.training.logs.log import Logs, Opening
from metamirror.training.logs.registry import open_trackers
from metamirror.training.run_folder import versions

NAME = "convergence"
X_LABEL = "inner step k (dotted: the K of training)"
TITLES = {
    "support_loss": "support loss",
    "grad_norm": "norm of the support gradient in φ",
}
LEGEND_COLUMNS = 5


def write_numbers(found: dict[str, Any], out: Path) -> None:
    """Write convergence.json and .csv."""
    write_json(out / f"{NAME}.json", found)
    write_atomically(out / f"{NAME}.csv", as_csv(found).encode())


def write_figure(found: dict[str, Any], out: Path) -> None:
    """Write convergence.svg and .png."""
    figure = draw(found)
    for kind in ("svg", "png"):
        save(figure, out / f"{NAME}.{kind}")


def send(found: dict[str, Any], out: Path, log: str) -> None:
    """Give trackers every curve, with k as the step, and the figure."""
    opening = Opening(out, -1, found["protocol"], versions())
    with Logs(open_trackers(log, opening)) as logs:
        for points in zip(*(curve["points"] for curve in found["curves"]), strict=True):
            pairs = zip(found["curves"], points, strict=True)
            values = {f"{c['label']}/{n}": v for c, p in pairs for n, v in p.items() if n != "k"}
            logs.add(points[0]["k"], values)
        logs.image(NAME, (out / f"{NAME}.png").read_bytes())


def as_csv(found: dict[str, Any]) -> str:
    """Return a line for each curve and k."""
    columns = ["curve", "method", "seeds", "tasks", *found["curves"][0]["points"][0]]
    tasks = found["protocol"]["tasks"]
    rows = (
        {**curve, "curve": curve["label"], "seeds": len(curve["seeds"]), "tasks": tasks, **point}
        for curve in found["curves"]
        for point in curve["points"]
    )
    return csv_text(columns, rows)


def measures_of(found: dict[str, Any]) -> list[str]:
    """Return what is drawn against k: of the support set, then the query's own measure."""
    return [*TITLES, str(found.get("measure"))]


def title_of(found: dict[str, Any], measure: str) -> tuple[str, bool]:
    """Return a measure's title, and whether it falls by orders of magnitude."""
    if measure in TITLES:
        return TITLES[measure], True
    metric = metric_in({**found, "metric": measure})
    return f"query {metric.heading}", not metric.higher


def series_of(curves: Sequence[dict[str, Any]], measure: str) -> list[Series]:
    """Return one of the measures as lines; what is damaged or not finite is left out."""
    series = []
    styles = styles_of(str(curve.get("method")) for curve in curves)
    for curve, style in zip(curves, styles, strict=True):
        points = {
            (k, mean): number(point.get(f"{measure}_ci95")) or 0.0
            for point in dicts_in(curve.get("points"))
            if (k := number(point.get("k"))) is not None
            and (mean := number(point.get(measure))) is not None
        }
        label = str(curve.get("label"))
        series.append(Series(label, style, list(points), list(points.values())))
    return series


def draw(found: dict[str, Any]) -> Figure:
    """Return support loss, gradient norm and the query's measure against k, side by side."""
    curves = found["curves"]
    # Further lines of the legend take nothing from the axes.
    height = 4.1 + 0.2 * max(0, math.ceil(len(curves) / LEGEND_COLUMNS) - 2)
    figure = Figure(figsize=(12, height), layout="constrained")
    trained = sorted({curve["trained_steps"] for curve in curves})
    for axes, measure in zip(figure.subplots(1, 3), measures_of(found), strict=True):
        series = series_of(curves, measure)
        words, log = title_of(found, measure)
        draw_lines(axes, series, x_label=X_LABEL, log=log, marks=trained)
        axes.set_title(words, fontsize=11)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    legend = figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=min(len(labels), LEGEND_COLUMNS),
        frameon=False,
    )
    title = figure.suptitle(protocol_in_words(found), fontsize=9, color=GREY)
    for text in (title, *legend.get_texts()):
        text.set_parse_math(False)  # no mathematics in a name
    return figure


def protocol_in_words(found: dict[str, Any]) -> str:
    """Return what decides the numbers, in a line."""
    p = found["protocol"]
    ways = f"{p['ways']}-way " if p["ways"] else ""
    return (
        f"{p['data']}, {ways}{p['shots']}-shot, {p['queries']} queries, {p['norm']} normalisation, "
        f"mean over {p['tasks']} {p['split']} tasks with 95 % intervals, k = 0..{p['steps']}"
    )


def describe_convergence(found: dict[str, Any]) -> list[str]:
    """Return the paper's observations, checked, in lines for people."""
    reference = found["reference"]
    lines = [protocol_in_words(found)]
    if reference is None:
        lines.append("no run of maml among them, so that the paper's observations are not checked")
    for curve in found["curves"]:
        first = curve["points"][0]
        seeds = len(curve["seeds"])
        name = f"{curve['label']} ({seeds} seeds)" if seeds > 1 else curve["label"]
        words = [
            f"at k = 0 support loss {first['support_loss']:.4g} ± "
            f"{first['support_loss_ci95']:.2g}, gradient norm {first['grad_norm']:.4g}"
        ]
        if reference is not None and curve["label"] != reference:
            words += _against(curve, found["comparable"], reference)
        lines.append(f"{name}: {'; '.join(words)}")
    return lines


def _against(curve: dict[str, Any], comparable: list[float], reference: str) -> list[str]:
    loss, norm, target = (
        curve[key] for key in ("initial_loss", "initial_grad_norm", "reference_loss")
    )
    verdict = {
        "lower": "a lower start than",
        "higher": "a higher start than",
        "not significant": "no significant difference from the start of",
    }.get(loss["verdict"], f"{loss['verdict']} against the start of")
    inside = "comparable" if norm["comparable"] else "not comparable"
    reached = (
        f"not reached in {curve['points'][-1]['k']} steps"
        if target["reached_at"] is None
        else f"reached at k = {target['reached_at']}"
    )
    return [
        f"{verdict} {reference} (difference {loss['difference']:+.4g}, 95 % "
        f"{loss['low']:+.4g} to {loss['high']:+.4g})",
        f"gradient norm {norm['ratio']:.2f} times as large, {inside} "
        f"({comparable[0]:g} to {comparable[1]:g} counts as comparable)",
        f"{reference}'s support loss at k = {target['k']} ({target['loss']:.4g}) {reached}",
    ]
