"""What a search for step sizes says of its own reach."""

import pytest

from metamirror.experiments.comparison.search import at_the_edge


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
