"""Runs that fall back to guessing are noticed, described, and stopped where that was asked for."""

import math

import pytest
import torch

import metamirror as mm
from metamirror.storage.checkpoint import TrainingState
from metamirror.training import collapse
from metamirror.training.config import RunConfig
from metamirror.training.factory import resolved
from metamirror.training.train import train

CONFIG = resolved(RunConfig("maml", ways=5, queries=15, tasks_per_step=4))


def watched(*means: float, config: RunConfig = CONFIG) -> tuple[TrainingState, list]:
    """A run whose accuracy has these means, each over a hundred steps."""
    state, found = TrainingState(), []
    for mean in means:
        for step in range(collapse.WINDOW):
            answer = collapse.watch(state, mean + (1 if step % 2 else -1), config, outputs=5)
            if answer is not None:
                found.append(answer)
    return state, found


def test_a_run_that_falls_back_to_chance_is_found():
    state, found = watched(40.0, 60.0, 65.0, 20.0)
    assert found == [(pytest.approx(20.0), True)]
    words = collapse.describe(state, *found[0], CONFIG, ["the last layer is dead"])
    assert words.startswith("maml has collapsed: its accuracy was 20.0 %, at chance")
    assert "after 60.0 %; the last layer is dead. Lower outer_lr (0.001) or lr (0.01)" in words


@pytest.mark.parametrize(
    "means", [(20.0, 20.0, 40.0), (40.0, 30.0, 23.0), (95.0,), (20.0, 60.0, 20.0)]
)
def test_a_run_that_learns_slowly_or_gets_worse_is_not(means):
    assert not [fell for _, fell in watched(*means)[1] if fell]


def test_less_than_a_hundred_steps_say_nothing():
    state, found = watched(60.0, 60.0)
    for _ in range(collapse.WINDOW - 1):
        assert collapse.watch(state, 20.0, CONFIG, outputs=5) is None
    assert not found
    assert collapse.watch(state, 20.0, CONFIG, outputs=5) == (20.0, True)


def test_few_examples_a_step_widen_what_counts_as_chance():
    """A hundred steps of five examples scatter by 1.8 points around their mean."""
    few = RunConfig("maml", ways=5, queries=1, tasks_per_step=1)
    assert watched(60.0, 60.0, 24.0, config=few)[1] == [(pytest.approx(24.0), True)]
    assert watched(30.0, 31.0, 24.0, config=few)[1] == [(pytest.approx(24.0), False)]
    assert not watched(60.0, 60.0, 24.0)[1]


def test_a_recovery_ends_a_collapse():
    state, _ = watched(60.0, 60.0, 20.0)
    state.collapsed = True
    for _ in range(collapse.WINDOW):
        collapse.watch(state, 50.0, CONFIG, outputs=5)
    assert not state.collapsed


def test_regression_is_not_watched():
    state = TrainingState()
    for _ in range(2 * collapse.WINDOW):
        assert collapse.watch(state, math.nan, CONFIG, outputs=1) is None
    assert state == TrainingState()


def letters(learner_lr: float = 0.1) -> tuple[mm.Learner, mm.Task]:
    stream = mm.tasks("glyphs", queries=2, batch=1)
    model = mm.models.Conv4(ways=5, channels=1, image_size=28, width=4)
    return mm.make_learner("maml", model, steps=1, lr=learner_lr), stream.task(0, 0)


def test_the_signs_name_a_dead_layer_and_an_exploded_geometry():
    learner, task = letters()
    assert collapse.signs_of(learner, task) == []
    with torch.no_grad():
        for name, p in learner.model.named_parameters():
            if name.endswith("norm.bias"):
                p.fill_(-100.0)
    (sign,) = collapse.signs_of(learner, task)
    assert "the last layer is dead" in sign
    wild, task = letters(learner_lr=1e4)
    (sign,) = collapse.signs_of(wild, task)
    assert "one adaptation moves the parameters by" in sign


DYING = {
    "method": "maml",
    "data": "glyphs",
    "width": 4,
    "steps": 1,
    "queries": 1,
    "tasks_per_step": 1,
    "iterations": 150,
    "outer_lr": 100.0,
    "validate_every": 0,
    "log_every": 50,
}


def test_a_dead_network_is_said_to_be_one_once(tmp_path, capsys):
    train(RunConfig(**DYING), tmp_path / "run", device="cpu")
    words = capsys.readouterr().err
    assert words.count("maml has collapsed") == 1
    assert "the last layer is dead" in words
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert ["collapsed" in line for line in lines] == [False, True, True]


def test_on_collapse_stop_ends_the_run_and_keeps_it(tmp_path):
    with pytest.raises(ValueError, match=r"maml has collapsed.*is kept"):
        train(RunConfig(**DYING, on_collapse="stop"), tmp_path / "run", device="cpu")
    assert mm.load(tmp_path / "run", which="last").steps == 1
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert ["collapsed" in line for line in lines] == [False, True]
    # Continued without a change, it stops again.
    with pytest.raises(ValueError, match="maml has collapsed"):
        train(
            RunConfig(**DYING | {"iterations": 400}, on_collapse="stop"),
            tmp_path / "run",
            resume=True,
            device="cpu",
        )
