"""Devices, types, and bfloat16 for the forward passes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import metamirror as mm
from metamirror.cli.main import main
from metamirror.data import DATA_SETS, DataSet
from metamirror.training.device import choose_device, place
from metamirror.training.factory import build_learner, build_stream
from metamirror.training.train import train
from tests.networks import image_tasks
from tests.runs import Pictures, small


def test_the_device_is_chosen(monkeypatch):
    assert choose_device("auto").type in ("cpu", "cuda", "mps")
    assert choose_device("cpu") == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_device("auto", local_rank=1) == torch.device("cuda", 1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert choose_device("auto").type == "mps"


@pytest.mark.parametrize("name", ["tpu-ish", "cuda:7", "xpu"])
def test_a_device_that_is_not_there_is_named(name: str, tmp_path: Path, capsys):
    words = ["train", "--data", "sinusoid", "--method", "maml", "--out", str(tmp_path / "run")]
    assert main([*words, "--device", name]) == 2
    assert f"device is '{name}'" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_labels_keep_their_type_and_values_take_the_learners():
    task = image_tasks()
    placed = place(task, mm.models.MLP(1, 1))
    assert placed.support.x.dtype == torch.float32
    assert placed.support.y.dtype == torch.int64


def test_a_run_in_double_precision_is_one(tmp_path: Path):
    train(small(dtype="float64", method="blockiaf"), tmp_path)
    assert {p.dtype for p in mm.load(tmp_path).parameters()} == {torch.float64}
    assert main(["evaluate", str(tmp_path), "--tasks", "2"]) == 0


@pytest.mark.parametrize("method", mm.METHODS)
def test_every_method_trains_under_autocast(method: str, tmp_path: Path, monkeypatch):
    """The convolutions run in bfloat16, everything that is learned stays in float32."""
    monkeypatch.setitem(DATA_SETS, "pictures", DataSet("", "", stream=Pictures))
    config = small(data="pictures", ways=3, width=4, autocast="bf16", method=method, iterations=2)
    stream = build_stream(config, "train")
    learner = build_learner(config, stream)
    seen = set()
    learner.model.blocks[1].conv.register_forward_hook(lambda m, i, o: seen.add(o.dtype))
    loss = learner.meta_loss(stream[0], seeds=stream.seeds(0))
    assert seen == {torch.bfloat16}
    assert loss.dtype == torch.float32
    loss.backward()
    grads = [p.grad for p in learner.parameters() if p.grad is not None]
    assert {g.dtype for g in grads} == {torch.float32}
    assert all(torch.isfinite(g).all() for g in grads)


def test_autocast_learns_what_float32_learns(tmp_path: Path, monkeypatch):
    monkeypatch.setitem(DATA_SETS, "pictures", DataSet("", "", stream=Pictures))
    losses = {}
    for autocast in ("none", "bf16"):
        run = tmp_path / autocast
        config = small(
            data="pictures",
            ways=3,
            width=4,
            autocast=autocast,
            iterations=30,
            log_every=5,
            outer_lr=0.01,
            lr=0.2,
            validate_every=0,
            vectorize=False,
        )
        train(config, run)
        lines = (run / "metrics.jsonl").read_text().splitlines()
        losses[autocast] = [json.loads(line)["loss"] for line in lines]
    assert losses["bf16"] != losses["none"]
    assert losses["bf16"][-1] < 0.6 * losses["bf16"][0]
    assert losses["bf16"][-1] == pytest.approx(losses["none"][-1], abs=0.15)


def test_vmap_under_autocast_is_refused_rather_than_passed_over():
    learner = mm.make_learner("maml", mm.models.MLP(6, 3), vectorize=True)
    with pytest.raises(ValueError, match="leave vectorize off"):
        learner.configure(autocast=torch.bfloat16)
