"""The example of CONTRIBUTING.md is a method like the others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import metamirror as mm
from tests.methods import test_methods_table as shared
from tests.networks import point_tasks, smooth_mlp
from tests.table import Row

LISTING = re.compile(r"```python\n(.*?)```", re.DOTALL)


@pytest.fixture
def layerwise(monkeypatch):
    text = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()
    (listing,) = LISTING.findall(text)
    names: dict[str, object] = {}
    exec(compile(listing, "CONTRIBUTING.md", "exec"), names)
    monkeypatch.setitem(mm.METHODS, "layerwise", names["METHOD"])
    return listing


def test_the_example_is_thirty_lines(layerwise):
    assert sum(bool(line.strip()) for line in layerwise.splitlines()) <= 30


def test_the_example_passes_the_shared_tests(layerwise, tmp_path):
    shared.judge(Row("layerwise"), tmp_path)


def test_the_example_learns(layerwise):
    learner = mm.make_learner("layerwise", smooth_mlp(), lr=0.1)
    before = learner.meta_loss(point_tasks())
    optimizer = torch.optim.Adam(learner.parameters(), lr=1e-2)
    for _ in range(20):
        optimizer.zero_grad()
        learner.meta_loss(point_tasks()).backward()
        optimizer.step()
    assert learner.meta_loss(point_tasks()).item() < before.item()
