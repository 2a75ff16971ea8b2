"""What the pages of docs/studies say of the paper's convergence figure, from the study's files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from metamirror.core.files import read_json
from speed_table import NOTHING, markdown
from study import figure

PICTURE = "![Support loss, gradient norm and query accuracy against the inner step]({})"
SHOWN = (0, 1, 2, 3, 4, 5, 10)
"""Inner steps of which the support loss is told."""


def table(name: str, results: Path) -> str:
    """The figure, and a line for each curve: its support losses, and the paper's observations."""
    file = results / "study" / name / "convergence.json"
    if not file.exists():
        return NOTHING
    found = read_json(file)
    steps = [k for k in SHOWN if k <= found["protocol"]["steps"]]
    head = [
        "method",
        *(f"loss, k = {k}" for k in steps),
        "at k = 0, against MAML",
        "gradient norm at k = 0, to MAML's",
        "MAML's loss at its last step reached at k",
    ]
    lines = markdown(head, (_cells(curve, steps) for curve in found["curves"]))
    return f"{PICTURE.format(figure(name))}\n\n{lines}"


def _cells(curve: Mapping[str, Any], steps: list[int]) -> list[str]:
    initial, norm = curve["initial_loss"], curve["initial_grad_norm"]
    reached = curve["reference_loss"]["reached_at"]
    of_itself = initial["verdict"] == "reference"
    verdict = initial["verdict"].replace("no difference seen", "not significant")  # older files
    gap = f"{initial['difference']:+.2f} [{initial['low']:+.2f}, {initial['high']:+.2f}]"
    points = {point["k"]: point["support_loss"] for point in curve["points"]}
    return [
        f"`{curve['label']}`, {len(curve['seeds'])} seed{'s' if len(curve['seeds']) > 1 else ''}",
        *(f"{points[k]:.3f}" for k in steps),
        "" if of_itself else f"{verdict}: {gap}",
        "" if of_itself else f"{norm['ratio']:.2f}",
        "not by the last" if reached is None else str(reached),
    ]
