"""A run that was broken off and continued is the run that was not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import metamirror as mm
from metamirror.data import DATA_SETS, DataSet
from metamirror.storage import learner_file
from metamirror.training import source
from metamirror.training import train as entry
from metamirror.training.config import RunConfig
from metamirror.training.train import train
from tests.runs import Pictures, results, small, small_of


class GoneError(Exception):
    pass


def broken_off(config: RunConfig, out: Path, at: int, monkeypatch) -> None:
    """The run, until step `at`, where the process is gone without a word."""
    real = source.meta_gradient

    def failing(learner, parameters, stream, step, ranks, **options):
        if step == at:
            raise GoneError
        return real(learner, parameters, stream, step, ranks, **options)

    with monkeypatch.context() as patch:
        patch.setattr(source, "meta_gradient", failing)
        with pytest.raises(GoneError):
            train(config, out, resume=True)


# The paper's methods with both optimisers; the others with the second among the slow tests.
PAIRS = [
    pytest.param(key, optimizer, marks=pytest.mark.slow if second else ())
    for key, method in mm.METHODS.items()
    for optimizer in ("adam", "sgd")
    for second in [optimizer == "sgd" and method.group != "paper"]
]


@pytest.mark.parametrize(("method", "optimizer"), PAIRS)
def test_resuming_is_exact(method: str, optimizer: str, tmp_path: Path, monkeypatch):
    config = small_of(method, optimizer=optimizer, weight_decay=1e-4, schedule="cosine")
    train(config, tmp_path / "whole")
    for at in (2, 7, 11):
        broken_off(config, tmp_path / "broken", at, monkeypatch)
    train(config, tmp_path / "broken", resume=True)
    assert results(tmp_path / "broken") == results(tmp_path / "whole")


@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer": "sgd", "momentum": 0.0},
        {"schedule": "step", "decay_every": 3},
        {"clip_norm": 0.1, "geometry_lr": 0.01},
        {"validate_every": 0},
        {"dtype": "float64", "prior": "diagonal:0.1"},
        {"vectorize": False, "first_order": True},
        {"autocast": "bf16"},
    ],
    ids=str,
)
def test_resuming_is_exact_under_every_setting(changes: dict, tmp_path: Path, monkeypatch):
    config = small(method="metasgd", **changes)
    train(config, tmp_path / "whole")
    broken_off(config, tmp_path / "broken", 8, monkeypatch)
    train(config, tmp_path / "broken", resume=True)
    assert results(tmp_path / "broken") == results(tmp_path / "whole")


def test_resuming_is_exact_on_pictures(tmp_path: Path, monkeypatch):
    monkeypatch.setitem(DATA_SETS, "pictures", DataSet("", "", stream=Pictures))
    config = small(data="pictures", width=4, method="blockiaf", norm="inductive")
    train(config, tmp_path / "whole")
    broken_off(config, tmp_path / "broken", 9, monkeypatch)
    train(config, tmp_path / "broken", resume=True)
    assert results(tmp_path / "broken") == results(tmp_path / "whole")
    lines = (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()
    last = json.loads(lines[-1])
    assert 0 <= last["accuracy"] <= 100
    assert {"val_accuracy", "val_ci95", "val_loss"} <= set(last)


def test_what_draws_from_the_global_generator_goes_on_where_it_was(tmp_path: Path, monkeypatch):
    real = entry.build_stream

    def noisy(config, split, **options):
        stream = real(config, split, **options)
        plain = stream.task

        def task(step: int, index: int) -> mm.Task:
            support, query = plain(step, index)
            return mm.Task(mm.Batch(support.x + torch.rand(()), support.y), query)

        stream.task = task
        return stream

    monkeypatch.setattr(entry, "build_stream", noisy)
    train(small(), tmp_path / "whole")
    broken_off(small(), tmp_path / "broken", 8, monkeypatch)
    torch.manual_seed(99)
    train(small(), tmp_path / "broken", resume=True)
    assert results(tmp_path / "broken") == results(tmp_path / "whole")


def test_the_best_learner_is_that_of_its_validation(tmp_path: Path):
    # A step size this large makes it worse and worse.
    train(small(optimizer="sgd", outer_lr=0.05, iterations=12), tmp_path)
    lines = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    losses = {line["step"]: line["val_loss"] for line in lines if "val_loss" in line}
    best = min(losses, key=losses.get)
    assert learner_file.step_of(tmp_path, "best") == best
    assert learner_file.step_of(tmp_path, "last") == 12


def test_a_longer_run_goes_on_where_the_shorter_ended(tmp_path: Path):
    short, long = small(validate_every=0, iterations=6), small(validate_every=0, iterations=12)
    train(short, tmp_path / "grown")
    train(long, tmp_path / "grown", resume=True)
    train(long, tmp_path / "whole")
    assert results(tmp_path / "grown") == results(tmp_path / "whole")


def test_only_two_checkpoints_are_kept(tmp_path: Path):
    train(small(checkpoint_every=1), tmp_path)
    names = sorted(p.name for p in (tmp_path / "checkpoints").iterdir())
    assert names == ["step-00000011.safetensors", "step-00000012.safetensors"]
