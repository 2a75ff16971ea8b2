"""A report shows a run's own test score, whatever else the run was evaluated on."""

from pathlib import Path

from metamirror.report.collect import Run
from metamirror.training.config import RunConfig


def test_the_test_score_is_that_of_the_runs_own_data_and_shots():
    own = {"split": "test", "data": "glyphs", "shots": 1, "tasks": 10}
    other = [{**own, "data": "omniglot", "tasks": 50}, {**own, "shots": 5, "tasks": 90}]
    run = Run(Path("run"), "run", RunConfig("maml"), evaluations=[own, *other])
    assert run.test == own
    run.evaluations = other
    assert run.test is None
