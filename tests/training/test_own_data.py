"""Runs on data of the user's own: arrays in a file, sizes that each task draws, iterators."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch

import metamirror as mm
from metamirror.cli.main import main
from metamirror.data import DATA_SETS, DataSet
from metamirror.training.config import load_config
from metamirror.training.evaluate import evaluate_stream
from metamirror.training.factory import build_learner, build_stream, resolved
from metamirror.training.train import train
from tests.refusals import assert_command_refused
from tests.runs import results, small
from tests.training.test_resume import broken_off


@pytest.fixture(scope="module")
def embeddings(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Vectors around the mean of their class, which a few examples tell apart."""
    random = np.random.default_rng(0)
    labels = random.permutation(np.repeat(np.arange(24), 10))
    x = random.normal(size=(24, 16))[labels] + 0.3 * random.normal(size=(240, 16))
    path = tmp_path_factory.mktemp("own") / "embeddings.npz"
    np.savez(path, x=x.astype(np.float32), y=np.array([f"kind {c:02}" for c in labels]))
    return f"arrays:{path}"


DRAWN = {"ways": "2-4", "shots": "1-3", "queries": 4}
FLAGS = (
    *("--ways", "2-4", "--queries", "4", "--steps", "2", "--lr", "0.1", "--iterations", "6"),
    *("--tasks-per-step", "3", "--width", "8", "--validate-every", "3", "--val-tasks", "3"),
)


def test_resuming_is_exact_where_tasks_differ_in_size(embeddings, tmp_path, monkeypatch):
    config = small(method="metasgd", data=embeddings, **DRAWN)
    train(config, tmp_path / "whole")
    for at in (2, 7):
        broken_off(config, tmp_path / "broken", at, monkeypatch)
    train(config, tmp_path / "broken", resume=True)
    assert results(tmp_path / "broken") == results(tmp_path / "whole")
    assert load_config(tmp_path / "whole") == resolved(config)


def test_processes_change_no_bit_of_a_run_whose_tasks_differ(embeddings, tmp_path):
    config = small(data=embeddings, iterations=3, validate_every=0, **DRAWN)
    for processes in (1, 2):
        train(config, tmp_path / str(processes), processes=processes)
    assert results(tmp_path / "1") == results(tmp_path / "2")


def test_other_data_under_the_same_name_are_not_continued(tmp_path):
    x, y = np.random.default_rng(0).normal(size=(60, 4)), np.repeat(np.arange(12), 5)
    np.savez(tmp_path / "a.npz", x=x, y=y)
    config = small(data=f"arrays:{tmp_path / 'a.npz'}", ways=2, shots=1, queries=3)
    train(config, tmp_path / "run")
    np.savez(tmp_path / "a.npz", x=x + 1, y=y)
    with pytest.raises(ValueError, match="is not what it was when"):
        train(config, tmp_path / "run", resume=True)


def test_train_evaluate_and_compare_by_the_command_line(embeddings, tmp_path, monkeypatch, capsys):
    folder = Path(embeddings.removeprefix("arrays:")).parent
    monkeypatch.chdir(folder)
    own = ["--data", "arrays:embeddings.npz", *FLAGS]
    out = str(tmp_path / "run")
    assert main(["train", "--method", "maml", *own, "--shots", "1-3", "--out", out]) == 0
    monkeypatch.chdir(tmp_path)  # the run finds its data from anywhere
    assert json.loads((tmp_path / "run" / "config.json").read_text())["ways"] == "2-4"
    capsys.readouterr()
    assert main(["evaluate", out, "--tasks", "6"]) == 0
    assert "1 to 3 shots, 2 steps, 6 test tasks" in capsys.readouterr().out
    assert main(["evaluate", out, "--tasks", "6", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["ways"], found["shots"]) == ("2-4", "1-3")
    monkeypatch.chdir(folder)
    words = ["--methods", "maml,metasgd", "--shots", "1,1-3", "--seeds", "1", "--test-tasks", "4"]
    there = ["--out", str(tmp_path / "table")]
    assert main(["compare", *own, *words, *there]) == 0
    capsys.readouterr()
    table = json.loads((tmp_path / "table" / "table.json").read_text())
    line = table["protocol"]["line"]
    assert "16 numbers each" in line
    assert "2 to 4 ways, drawn for each task" in line
    assert "1-shot and 1 to 3 shots, drawn for each task" in line
    assert {row["shots"] for row in table["rows"]} == {1, "1-3"}
    assert all(row["accuracy"] is not None for row in table["rows"])
    assert "Nearest class mean, inputs" in {row["title"] for row in table["rows"]}
    assert "1-3-shot" in (tmp_path / "table" / "table.md").read_text()
    assert "drawn for each task" in (tmp_path / "table" / "report.html").read_text()


def test_vectors_get_an_mlp_and_the_loop_that_takes_any_shape(embeddings):
    fixed = small(data=embeddings, ways=3)
    stream = build_stream(fixed, "train")
    learner = build_learner(fixed, stream)
    assert isinstance(learner.model, mm.models.MLP)
    assert learner.settings.vectorize
    drawn = small(data=embeddings, **DRAWN)
    learner = build_learner(drawn, build_stream(drawn, "train"))
    assert not learner.settings.vectorize
    assert learner.model.head.out_features == 4
    results = evaluate_stream(learner, build_stream(drawn, "test"), 5, quiet=True)
    assert len(results) == 5


REFUSED = {
    "vmap of different shapes": (
        ["--ways", "2-4", "--vectorize", "True"],
        "vectorize is on, and the tasks of",
    ),
    "no range": (["--ways", "4-2"], "ways is '4-2'; it must be at least 1"),
    "too many ways": (["--ways", "5-30"], "ways is 5-30, but the train split"),
    "a size": (["--image-size", "32"], "is used in its own size: leave it out"),
    "a network for images": (["--model", "conv4"], "conv4 takes images, and"),
}


@pytest.mark.parametrize("mistake", REFUSED)
def test_a_mistake_is_named(mistake: str, embeddings, tmp_path, capsys):
    flags, words = REFUSED[mistake]
    base = ["train", "--method", "maml", "--data", embeddings, "--queries", "4"]
    code = main([*base, "--out", str(tmp_path / "run"), *flags])
    assert_command_refused(capsys, code, words)


def test_a_bad_file_is_one_line(tmp_path, capsys):
    (tmp_path / "a.npz").write_bytes(b"nothing")
    code = main(["train", "--method", "maml", "--data", f"arrays:{tmp_path / 'a.npz'}"])
    assert_command_refused(capsys, code, "a.npz is damaged or not what its name says")
    assert main(["data", "show", f"arrays:{tmp_path / 'a.npz'}"]) == 2
    assert main(["data", "add", f"arrays:{tmp_path / 'a.npz'}"]) == 2
    assert "it is used where it is" in capsys.readouterr().err


def iterated(split, shots, queries, seed, batch):
    """Curves of different lengths, in an order that the iterator alone knows."""
    curves = mm.tasks("sinusoid", split, shots=5, queries=3, seed=seed)

    def draw():
        for number in itertools.count():
            (x, y), query = curves.task(number, 0)
            kept = 2 + number % 4
            yield mm.Task(mm.Batch(x[:kept], y[:kept]), query)

    return mm.tasks(draw(), split, seed=seed, batch=batch)


def test_a_run_on_an_iterator_says_that_resuming_may_not_be_exact(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(DATA_SETS, "mine", DataSet("", "", stream=iterated))
    config = small(data="mine", validate_every=0)
    train(config, tmp_path / "whole")
    assert capsys.readouterr().err.count("tasks come from an iterator") == 1
    broken_off(config, tmp_path / "broken", 7, monkeypatch)
    capsys.readouterr()
    train(config, tmp_path / "broken", resume=True)
    said = capsys.readouterr().err
    assert "is continued on tasks from an iterator, after 5 steps" in said
    assert "not that of an undisturbed run" in said
    # This one does repeat itself.
    assert results(tmp_path / "broken") == results(tmp_path / "whole")
    with pytest.raises(ValueError, match=r"has passed.*validation.*task\(step, index\)"):
        train(small(data="mine", val_tasks=40), tmp_path / "validated")


def test_regression_on_tasks_of_different_sizes_learns(monkeypatch, tmp_path):
    class Curves:
        def task(self, step: int, index: int) -> mm.Task:
            (x, y), query = mm.tasks("sinusoid", shots=10).task(step, index)
            kept = 5 + (step + index) % 6
            return mm.Task(mm.Batch(x[:kept], y[:kept]), query)

    monkeypatch.setitem(
        DATA_SETS,
        "curves",
        DataSet("", "", stream=lambda s, k, q, seed, b: mm.tasks(Curves(), s, batch=b)),
    )
    run = small(data="curves", iterations=150, width=40, validate_every=0, outer_lr=0.01)
    learner = train(run, tmp_path / "run")
    before = build_learner(run, build_stream(run, "train"))
    losses = [
        float(
            torch.tensor(
                [r.loss for r in evaluate_stream(one, build_stream(run, "test"), 30, quiet=True)]
            ).mean()
        )
        for one in (before, learner)
    ]
    assert losses[1] < 0.8 * losses[0]
