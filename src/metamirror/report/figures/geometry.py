"""A learned geometry in words and in a figure."""

import math
from pathlib import Path
from typing import Any

from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from metamirror.report.charts import BLUE, GREY, save


def verdict_in_words(found: dict[str, Any]) -> str:
    """Return one sentence on whether the learned geometry is that of a mirror map."""
    proof = ", ".join(filter(None, (found["proof"], found["note"])))
    if found["is_mirror_map"] is None:
        return proof or "no map from dual to primal variables: the question does not apply"
    if not found["is_mirror_map"]:
        return f"not a mirror map, {proof}"
    if found["proof"] == "by construction":
        return f"a valid mirror map, {proof}"
    return f"a mirror map as far as measured, {proof}"


def describe_geometry(found: dict[str, Any]) -> list[str]:
    """Return the whole finding, in lines for people."""
    lines = [f"{found['method']} on {found['data']}: {verdict_in_words(found)}"]
    if found["map_bounds"] is not None:
        m, largest = found["map_bounds"]
        where = found["map_bounds_hold"]
        lines.append(f"the map's slopes, {where}: from m = {m:.4g} to M = {largest:.4g}")
    if found["strong_convexity"] is not None:
        lines.append(
            f"h is {found['strong_convexity']:.4g}-strongly convex "
            f"and {found['smoothness']:.4g}-smooth"
        )
    if found["loss_smoothness_estimate"] is None:
        return [*lines, "no inner loop: there are no steps to look at"]
    lines.append(
        f"the support loss has a smoothness l of about {found['loss_smoothness_estimate']:.4g} "
        f"(an estimate from below, before and after adaptation to {found['tasks']} tasks)"
    )
    if found["step_size_bound_estimate"] is not None:
        lines.append(
            f"2/(M l), below which steps descend where the loss is no steeper than that: about "
            f"{found['step_size_bound_estimate']:.4g}; this run's step size is {found['lr']:.4g}"
        )
    if found["effective_step_sizes"]:
        lines.append("effective step sizes, |change of phi| / |gradient|:")
    lines += [f"  {layer}: {size:.4g}" for layer, size in found["effective_step_sizes"].items()]
    if found["dependencies"] is not None:
        lines.append("layers of phi that move with other layers of z:")
        coupled = [
            f"  {i} with {', '.join(others)}"
            for i, row in found["dependencies"].items()
            if (others := [j for j, value in row.items() if j != i and value > 1e-9])
        ]
        lines += coupled or ["  none: every layer depends on itself alone"]
    return lines


def plot_geometry(found: dict[str, Any], path: Path) -> None:
    """Draw effective step sizes per layer, and which layers' updates depend on which others."""
    steps = found["effective_step_sizes"]
    depends = found["dependencies"]
    figure = Figure(figsize=(10 if depends else 6, 1.6 + 0.45 * len(steps)), layout="constrained")
    axes = figure.subplots(1, 2 if depends else 1, squeeze=False)[0]
    figure.suptitle(f"{found['method']}: {verdict_in_words(found)}", fontsize=11)
    axes[0].barh(list(steps), list(steps.values()), color=BLUE)
    axes[0].axvline(found["lr"], color=GREY, linestyle="--", linewidth=1)
    axes[0].annotate(
        "step size α",
        (found["lr"], 1),
        xycoords=("data", "axes fraction"),
        xytext=(4, -12),
        textcoords="offset points",
        color=GREY,
        fontsize=9,
    )
    axes[0].invert_yaxis()
    axes[0].set_xlim(left=0)
    axes[0].set_xlabel("effective step size, |Δφ| / |∇L|")
    axes[0].spines[["top", "right"]].set_visible(False)
    if depends:
        _draw_dependencies(figure, axes[1], depends)
    save(figure, path)


def _draw_dependencies(figure: Figure, axis: Any, depends: dict[str, dict[str, float]]) -> None:
    names = list(depends)
    values = [[depends[i][j] for j in names] for i in names]
    largest = max(max(row) for row in values) or 1.0
    shown = [[v if v > 1e-6 * largest else math.nan for v in row] for row in values]
    image = axis.imshow(shown, cmap="Blues", norm=LogNorm(vmin=largest * 1e-4, vmax=largest))
    axis.set_xticks(range(len(names)), names, rotation=30, ha="right")
    axis.set_yticks(range(len(names)), names)
    axis.set_xlabel("moves with layer j of z")
    axis.set_ylabel("layer i of φ")
    for i, row in enumerate(values):
        for j, value in enumerate(row):
            dark = value > 0.03 * largest
            text = "0" if value <= 1e-6 * largest else f"{value:.2g}"
            axis.text(j, i, text, ha="center", va="center", fontsize=8, color="w" if dark else "k")
    figure.colorbar(image, ax=axis, shrink=0.8)
