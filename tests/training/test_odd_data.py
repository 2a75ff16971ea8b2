"""Tasks whose inputs, targets and outputs are no tensors, all the way through a run."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import metamirror as mm
from metamirror.core import import_path
from metamirror.core.trees import mapped
from metamirror.data import DATA_SETS, DataSet
from metamirror.models import MODELS
from metamirror.storage import tensor_file
from metamirror.training.collapse import signs_of
from metamirror.training.divergence import NonFiniteError, loss_of_guessing
from metamirror.training.factory import build_learner, build_stream
from metamirror.training.train import train
from tests.core.odd_models import Pair
from tests.runs import small


class Both(nn.Module):
    """Takes an object of two tensors and gives a dict of two."""

    def __init__(self, channels: int, image_size: int, ways: int):
        super().__init__()
        self.a, self.b = nn.Linear(image_size**2, ways), nn.Linear(2, ways)
        self.config = {"channels": channels, "image_size": image_size, "ways": ways}

    def forward(self, pair: Pair) -> dict[str, Tensor]:
        logits = self.a(pair.u.flatten(1)) + self.b(pair.v)
        return {"logits": logits, "size": logits.square().sum(1)}


class Recurrent(nn.Module):
    """A network that vmap cannot run."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.body, self.head = nn.GRU(inputs, 4, batch_first=True), nn.Linear(4, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x[:, None])[0][:, 0])


def two_losses(output: dict[str, Tensor], y: dict[str, Tensor]) -> Tensor:
    first = nn.functional.cross_entropy(output["logits"], y["label"])
    return first + 0.01 * (output["size"] - y["size"]).square().mean()


class Source:
    """Tasks by address; `broken` is the step in which the first one cannot be used."""

    example_shape, outputs, ragged, broken = (1, 4, 4), 3, False, -1

    def task(self, step: int, index: int) -> Any:
        random = torch.Generator().manual_seed(1000 * step + index)

        def batch(count: int) -> mm.Batch:
            u, v, size = (torch.randn(count, *s, generator=random) for s in ((1, 4, 4), (2,), ()))
            if (step, index) == (self.broken, 0):
                u = u + 3e38  # whose product is not finite
            y = torch.arange(count) % 3
            return mm.Batch(Pair(u, v), {"label": y, "size": size})

        return batch(6), batch(9)


@pytest.fixture
def odd(monkeypatch: pytest.MonkeyPatch) -> type[Source]:
    """A run's data, model and method, under the names that a configuration has for them."""
    monkeypatch.setitem(MODELS, "both", Both)
    monkeypatch.setitem(
        DATA_SETS,
        "odd",
        DataSet("", "", stream=lambda s, k, q, seed, b: mm.tasks(Source(), s, seed=seed, batch=b)),
    )
    method = replace(mm.METHODS["metasgd"], key="odd", defaults={"loss": two_losses})
    monkeypatch.setitem(mm.METHODS, "odd", method)
    return Source


def test_a_run_on_trees_is_trained_validated_and_evaluated(odd, tmp_path):
    config = small(data="odd", model="both", method="odd", width=None, log_every=1)
    learner = train(config, tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert all(math.isfinite(line["loss"]) for line in lines if "loss" in line)
    assert not any(line.get("diverged") for line in lines)
    assert math.isfinite(mm.evaluate(learner, mm.tasks(Source(), "test"), n=3).mean)


def test_a_task_of_trees_that_fails_is_written_down(odd, tmp_path, monkeypatch):
    monkeypatch.setattr(odd, "broken", 1)
    config = small(data="odd", model="both", method="odd", width=None)
    with pytest.raises(NonFiniteError, match="not finite at step 1, task 0"):
        train(config, tmp_path)
    (file,) = (tmp_path / "nonfinite").glob("*.safetensors")
    expected = [
        f"{part}.{axis}.{i}" for part in ("query", "support") for axis in "xy" for i in "01"
    ]
    assert sorted(tensor_file.read(file)[0]) == expected


def test_tasks_are_stacked_where_a_model_of_ones_own_can_be(monkeypatch):
    monkeypatch.setattr(import_path, "_ALLOWED", {__name__, "torch.nn"})

    def stacked(model: str) -> bool:
        config = small(model=model)
        return build_learner(config, build_stream(config, "train")).settings.vectorize

    assert stacked("torch.nn:Linear:in_features=1:out_features=1")
    assert not stacked(f"{__name__}:Recurrent")


def test_what_watches_a_run_takes_trees(odd):
    stream = mm.tasks(Source(), "train")
    assert loss_of_guessing(stream) == math.inf
    learner = mm.make_learner("odd", Both(1, 4, 3), steps=1)
    assert signs_of(learner, stream.task(0, 0)) == []
    with torch.no_grad():
        mapped(lambda p: p.zero_(), list(learner.model.parameters()))
    learner.configure(steps=0)
    assert "the last layer is dead" in signs_of(learner, stream.task(0, 0))[0]


def test_processes_take_objects(odd):
    learner = mm.make_learner("odd", Both(1, 4, 3), steps=1)
    tasks = [mm.tasks(Source(), "train").task(0, i) for i in range(2)]
    _, found = learner.meta_gradient(tasks)
    with mm.TaskPool(learner, processes=2) as pool:
        _, other = learner.meta_gradient(tasks, pool=pool)
    assert all(torch.equal(a, b) for a, b in zip(found, other, strict=True))
