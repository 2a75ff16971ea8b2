"""What a search for step sizes says of its own reach."""

import pytest

from metamirror.experiments.comparison.entries import Entry
from metamirror.experiments.comparison.grid import Cell, Rates, cell_of
from metamirror.experiments.comparison.search import Search, at_the_edge, trials
from metamirror.training.config import RunConfig


def found(candidates: list[float], chosen: float) -> dict[str, object]:
    return {
        "candidates": candidates,
        "rows": [{"label": "maml", "shots": 1, "lr": chosen}],
    }


@pytest.mark.parametrize(
    ("candidates", "chosen", "named"),
    [
        ([0.01, 0.1, 1.0], 0.1, False),
        ([0.01, 0.1, 1.0], 1.0, True),
        ([1.0, 0.1, 0.01], 0.01, True),
        ([0.01, 0.1], 0.1, False),  # one of the two ends in any case
        ([0.1], 0.1, False),
    ],
)
def test_a_best_value_at_the_end_of_the_range_is_named(
    candidates: list[float], chosen: float, named: bool
) -> None:
    assert bool(at_the_edge(found(candidates, chosen))) == named


def test_a_geometry_that_is_held_still_is_a_choice_like_others() -> None:
    """Zero is no rate that is left to the default."""
    base = RunConfig(method="metasgd", geometry_lr=0.5)
    tried = trials([Cell("metasgd", base)], Search((0.1,), 1, 2, (0.0, 0.01)), {"metasgd": 1})
    assert [trial.job.config["geometry_lr"] for trial in tried] == [0.0, 0.01]
    entry = Entry("metasgd", "metasgd", "MetaSGD", "method")
    for rates, rate in ((Rates(0.1, 0.0), 0.0), (Rates(0.1), 0.5)):
        cell = cell_of(entry, base, shots=1, seed=0, rates=rates, extra=1)
        assert cell.config.geometry_lr == rate
