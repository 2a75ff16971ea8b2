"""The page beside an adapted model: how good it is, and what it takes for what."""

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from metamirror.data.readers.images import decode
from metamirror.estimators.comparison import OURS, Comparison, Row, in_points
from metamirror.report.charts import Dot, dot_chart
from metamirror.report.page import write_page
from metamirror.report.styles import Style
from metamirror.report.tables import Cell, Table

MOST_CLASSES = 30
"""Classes whose confusion matrix still fits a page; of more the worst pairs are listed."""
MOST_PAIRS = 10
THUMBNAIL = 112  # pixels of its side
NOTE = (
    "Each example is predicted by a model that was fitted to others, which are fewer than the "
    "adapted model had. [ ] are 95 % intervals; differences are paired, example by example."
)


def write_advice(
    path: Path, found: Comparison, images: Sequence[Path], notes: Sequence[str]
) -> None:
    """Write the page of a comparison on images in files, with notes at its top."""
    doubtful = [
        {
            "source": thumbnail(images[one.index]),
            "name": images[one.index].name,
            "label": str(one.label),
            "predicted": str(one.predicted),
            "probability": one.probability,
        }
        for one in found.doubtful
    ]
    about = "The probability is that of the image's own label. A label may be wrong, too."
    parts: list[tuple[str, str, list[tuple[str, Any]]]] = [
        ("Accuracy", "accuracy", [("", accuracy(found))]),
        ("Confusion matrix", "confusion", [("", confusion(found))]),
        (
            "Most doubtful images",
            "doubtful",
            [("", {"images": doubtful, "note": about})] if doubtful else [],
        ),
    ]
    made = f"from {found.examples} examples of {len(found.classes)} classes"
    write_page(path, path.stem, made, parts, notes)


def accuracy(found: Comparison) -> dict[str, Any]:
    """Return the recommendation, with a table and a chart of the accuracies."""
    columns = {"classifier": "", "accuracy, %": "number", f"{OURS} minus it": "number"}
    rows = [_cells(row, row.name == found.recommendation) for row in found.rows]
    dots = [
        (row.name, [Dot(row.name, Style(i), *vars(row.accuracy).values())])
        for i, row in enumerate(found.rows)
    ]
    chart = dot_chart(dots, title="Accuracy, 95 % interval", x_label="percent; right is better")
    return {
        "recommendation": found.recommendation,
        "reason": found.reason[:1].upper() + found.reason[1:],
        "table": Table(columns, rows),
        "chart": chart,
        "note": NOTE,
    }


def _cells(row: Row, bold: bool) -> list[Cell]:
    here, gap = row.accuracy, row.ours_less_this
    sure = gap is not None and not gap.low <= 0 <= gap.high
    notes = () if sure or gap is None else ("not significant",)
    return [
        Cell(row.name, bold),
        Cell(f"{here.mean:.1f} [{here.low:.1f}, {here.high:.1f}]"),
        Cell("–" if gap is None else in_points(gap), notes=notes),
    ]


def confusion(found: Comparison) -> dict[str, Any]:
    """Return the confusion matrix where there is room for it, and otherwise the worst pairs."""
    labels = [str(label) for label in found.classes]
    if len(labels) > MOST_CLASSES:
        worst = found.confused()[:MOST_PAIRS]
        return {"pairs": [(labels[i], labels[j], count) for i, j, count in worst]}
    rows = []
    for i, counts in enumerate(found.confusion.tolist()):
        cells = [
            {"count": count, "share": round(100 * count / sum(counts)), "right": i == j}
            for j, count in enumerate(counts)
        ]
        rows.append((labels[i], cells))
    return {"labels": labels, "rows": rows, "who": OURS}


def thumbnail(path: Path) -> str:
    """Return the middle square of an image as the source of one in a page."""
    pixels = decode(path.read_bytes(), str(path), size=THUMBNAIL, channels=3)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
