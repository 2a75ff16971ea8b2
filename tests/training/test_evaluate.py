"""Evaluation: every step, every task, and a memory that does not grow."""

from __future__ import annotations

import json
import os
import resource
from pathlib import Path

import pytest
import torch

import metamirror as mm
from metamirror.cli.main import main
from metamirror.data import DATA_SETS, DataSet
from metamirror.methods import takes_real_targets
from metamirror.storage import learner_file
from metamirror.training.evaluate import evaluate_stream
from metamirror.training.evaluate_run import evaluate_run
from metamirror.training.train import train
from tests.runs import Pictures, forks, small

NOISE = 8.0
"""Megabytes by which two equal processes may differ; one task's graph alone would take more."""


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """A run on pictures, in a process that knows the data set."""
    out = tmp_path_factory.mktemp("runs") / "pictures"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(DATA_SETS, "pictures", DataSet("", "", stream=Pictures))
        train(small(data="pictures", ways=3, width=4, lr=0.2, outer_lr=0.01), out)
        yield out


@pytest.mark.parametrize("method", mm.METHODS)
def test_every_step_is_what_adapting_for_so_long_gives(method: str):
    torch.manual_seed(0)
    model, stream = mm.models.MLP(1, 1), mm.tasks("sinusoid", shots=5)
    if not takes_real_targets(method):
        model, stream = mm.models.MLP(256, 5), mm.tasks("glyphs", image_size=16)
    learner = mm.make_learner(method, model, lr=0.1, prior="isotropic:0.1")
    support, query = stream.task(0, 0)
    for k, adapted in enumerate(learner.adaptations(support, steps=4, seed=3)):
        expected = learner.adapt(support, steps=k, seed=3)
        assert torch.equal(adapted(query.x), expected(query.x))


@pytest.mark.parametrize("every_step", [True, False])
@pytest.mark.parametrize("method", mm.METHODS)
def test_tasks_at_once_give_what_each_gives_alone(method: str, every_step: bool):
    torch.manual_seed(0)
    model, stream = mm.models.MLP(1, 1), mm.tasks("sinusoid", shots=5)
    if not takes_real_targets(method):
        model, stream = mm.models.MLP(256, 5), mm.tasks("glyphs", image_size=16)
    learner = mm.make_learner(method, model.double(), lr=0.1, prior="isotropic:0.1")
    if not learner.settings.adjoint.vectorizes:
        pytest.skip("it does not vectorise")
    count = 3
    alone = evaluate_stream(learner, stream, count, every_step=every_step, quiet=True)
    learner.configure(vectorize=True)
    together = evaluate_stream(learner, stream, count, every_step=every_step, quiet=True)
    for one, other in zip(alone, together, strict=True):
        for field in ("losses", "scores", "support_losses", "grad_norms"):
            assert getattr(other, field) == pytest.approx(getattr(one, field), rel=1e-9, abs=1e-10)


def test_tasks_at_once_round_alike_in_any_number():
    learner = mm.make_learner("maml", mm.models.MLP(1, 1), vectorize=True)
    stream = mm.tasks("sinusoid", shots=5)
    few, many = (evaluate_stream(learner, stream, n, quiet=True) for n in (3, 40))
    assert many[:3] == few


def test_an_evaluation_leaves_the_results_of_every_task(pictures: Path):
    found = evaluate_run(pictures, tasks=6, steps=4)
    (file,) = (pictures / "evaluations").glob("*6tasks-4steps*.jsonl")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert [row["task"] for row in rows] == list(range(6))
    assert all(len(row["loss"]) == len(row["accuracy"]) == 5 for row in rows)
    for k, point in enumerate(found["by_step"]):
        mean = sum(row["accuracy"][k] for row in rows) / 6
        assert point["k"] == k
        assert point["accuracy"] == pytest.approx(mean)
    assert found["accuracy"] == found["by_step"][-1]["accuracy"]
    assert json.loads(file.with_suffix(".json").read_text()) == found
    assert (found["ways"], found["steps"], found["tasks"]) == (3, 4, 6)


def test_the_last_step_alone_gives_the_same_result(pictures: Path):
    every = evaluate_run(pictures, tasks=4)
    (only,) = (last := evaluate_run(pictures, tasks=4, every_step=False))["by_step"]
    assert (only["k"], only) == (every["steps"], every["by_step"][-1])
    assert last["accuracy"] == every["accuracy"]


def test_the_normalisation_can_be_changed_and_is_stated(pictures: Path, capsys):
    transductive, inductive = (
        evaluate_run(pictures, tasks=8, norm=norm) for norm in ("transductive", "inductive")
    )
    assert (transductive["norm"], inductive["norm"]) == ("transductive", "inductive")
    assert transductive["loss"] != inductive["loss"]
    capsys.readouterr()
    assert main(["evaluate", str(pictures), "--tasks", "2", "--norm", "inductive"]) == 0
    assert ", inductive: accuracy " in capsys.readouterr().out


def test_best_or_last_can_be_chosen(pictures: Path):
    for which in ("best", "last"):
        found = evaluate_run(pictures, tasks=2, which=which)
        assert found["step"] == learner_file.step_of(pictures, which)


def test_the_same_tasks_are_taken_every_time(pictures: Path):
    few, many = evaluate_run(pictures, tasks=3), evaluate_run(pictures, tasks=5)
    assert few != many
    lines = {
        tasks: next((pictures / "evaluations").glob(f"test-best-{tasks}tasks-2*.jsonl"))
        .read_text()
        .splitlines()
        for tasks in (3, 5)
    }
    assert lines[5][:3] == lines[3]


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_a_run_learns_and_every_split_can_be_evaluated(split: str, pictures: Path):
    found = evaluate_run(pictures, split=split, tasks=10)
    assert found["split"] == split
    assert found["by_step"][-1]["accuracy"] > 100 / 3 + 10


@pytest.mark.slow
def test_a_thousand_tasks_take_the_memory_of_ten():
    few, many = peak(10, 5), peak(1000, 5)
    assert many < few + NOISE, f"{few} MB for 10 tasks and {many} MB for 1000"


def test_many_steps_take_the_memory_of_few():
    few, many = peak(4, 2), peak(4, 200)
    assert many < few + NOISE, f"{few} MB for 2 steps and {many} MB for 200"


def peak(tasks: int, steps: int) -> float:
    """Megabytes at the highest, of a process of its own; parameters take 0.7 of them.

    The least of three: what else the allocator and its threads hold differs from run to run.
    """
    return min(_peak(tasks, steps) for _ in range(3))


def _peak(tasks: int, steps: int) -> float:
    context = forks()
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=_evaluate, args=(tasks, steps, send))
    process.start()
    # Without this end of its own, a process that fails is heard of rather than waited for.
    send.close()
    megabytes = receive.recv()
    process.join(60)
    return megabytes


def _evaluate(tasks: int, steps: int, send) -> None:
    learner = mm.make_learner("maml", mm.models.MLP(1, 1, hidden=(400, 400)), lr=1e-3)
    stream = mm.tasks("sinusoid", shots=5, batch=1)
    evaluate_stream(learner, stream, 3, steps=2, every_step=True, quiet=True)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    evaluate_stream(learner, stream, tasks, steps=steps, every_step=True, quiet=True)
    send.send((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
    os._exit(0)
