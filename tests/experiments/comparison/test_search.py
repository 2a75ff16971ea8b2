"""What a search for step sizes says of its own reach."""

import pytest

from metamirror.experiments.comparison.plan import make_rows
from metamirror.experiments.comparison.search import Search, at_the_edge, best
from metamirror.experiments.comparison.spec import Spec
from metamirror.training.config import RunConfig
from tests.experiments.comparison.test_protocol import stream


def found(
    candidates: list[float], chosen: float, tried: list[float] | None = None
) -> dict[str, object]:
    scores = [{"lr": lr} for lr in tried or candidates]
    return {
        "candidates": candidates,
        "rows": [{"label": "maml", "shots": 1, "scores": scores, "lr": chosen}],
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


def test_what_was_not_searched_for_has_no_end_of_a_range() -> None:
    """A method without an inner step tries one step size, which changes nothing."""
    assert at_the_edge(found([0.01, 0.1, 1.0], 0.01, tried=[0.01])) == []


def test_a_geometry_that_is_held_still_is_a_choice_like_others() -> None:
    """Zero is no rate that is left to the default."""
    spec = Spec(RunConfig("maml", width=4, geometry_lr=0.5), ["metasgd"], [1], controls=False)
    (row,) = make_rows(spec, stream())
    tried = Search((0.1,), 1, 2, (0.0, 0.01)).jobs(row)
    assert [job.config["geometry_lr"] for _, job in tried] == [0.0, 0.01]
    for rates, rate in (({"lr": 0.1, "geometry_lr": 0.0}, 0.0), ({"lr": 0.1}, 0.5)):
        (row,) = make_rows(spec, stream(), {("metasgd", 1): rates})
        assert row.jobs[0].config["geometry_lr"] == rate


@pytest.mark.parametrize(
    ("scores", "lr"),
    [
        ([{"lr": 0.1, "accuracy": 50.0}, {"lr": 0.2, "accuracy": 60.0}], 0.2),
        ([{"lr": 0.1, "mse": 0.5}, {"lr": 0.2, "mse": 0.6}, {"lr": 3, "mse": None}], 0.1),
        ([{"lr": 0.1, "accuracy": 60.0}, {"lr": 0.2, "accuracy": 60.0}], 0.1),
        ([{"lr": 0.1, "reason": "it diverged"}], None),
    ],
)
def test_the_best_step_size_is_the_best_score(scores, lr):
    found = best(scores)
    assert (found and found["lr"]) == lr
