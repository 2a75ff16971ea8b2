"""How step sizes were chosen: every score of the search, from search.json."""

from __future__ import annotations

from typing import Any

from metamirror.report.collect import MOST_WORDS, entries, number
from metamirror.report.markup import Child, Markup, table, tag


def search_section(found: dict[str, Any]) -> list[Markup]:
    """A line for each row and number of shots, a column for each choice; the chosen in bold."""
    rows = entries(found.get("rows"))
    scores = [entries(row.get("scores")) for row in rows]
    rates = list(dict.fromkeys(_rates(score) for own in scores for score in own))
    lines: list[list[Child]] = []
    for row, own in zip(rows, scores, strict=True):
        by_rate = {_rates(score): score for score in own}
        chosen = _rates(row)
        name = [str(row.get("label")), tag("small", f"{row.get('shots')}-shot")]
        lines.append(
            [
                name,
                *(_score(by_rate[r], r == chosen) if r in by_rate else "" for r in rates),
            ],
        )
    head: list[Child] = ["method", *map(_title, rates)]
    tasks, iterations = (number(found.get(key)) for key in ("tasks", "iterations"))
    note = (
        f"The step sizes of each row, chosen on {tasks or 0:,.0f} validation tasks after "
        f"{iterations or 0:,.0f} iterations; in bold what was taken. Test tasks are not touched."
    )
    return [tag("p", note, class_="note"), table(head, lines)]


def _rates(found: dict[str, Any]) -> tuple[float | None, float | None]:
    return number(found.get("lr")), number(found.get("geometry_lr"))


def _title(rates: tuple[float | None, float | None]) -> str:
    lr, beside = rates
    inner = "?" if lr is None else f"α = {lr:g}"
    return inner if beside is None else f"{inner}, geometry {beside:g}"


def _score(score: dict[str, Any], chosen: bool) -> Markup:
    accuracy, mse, half = (number(score.get(key)) for key in ("accuracy", "mse", "ci95"))
    value, digits = (mse, 4) if accuracy is None else (accuracy, 2)
    if value is None:
        reason = str(score.get("reason") or "")[:MOST_WORDS]
        return tag("td", tag("span", "failed", class_="bad"), tag("small", reason))
    text = f"{value:.{digits}f}" + ("" if half is None else f" ± {half:.{digits}f}")
    return tag("td", tag("strong", text) if chosen else text, class_="number")
