"""The example of CONTRIBUTING.md is a method like the others."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import metamirror as mm
from metamirror.testing import check_method
from metamirror.testing.networks import smooth_mlp
from tests.docs.listings import listings, run
from tests.networks import point_tasks

PAGE = Path(__file__).parents[2] / "CONTRIBUTING.md"


@pytest.fixture
def layerwise(monkeypatch):
    method = run(PAGE).METHOD
    monkeypatch.setitem(mm.METHODS, "layerwise", method)
    return method


def test_the_example_is_thirty_lines():
    (listing,) = listings(PAGE)
    assert sum(bool(line.strip()) for line in listing.splitlines()) <= 30


def test_the_example_passes_the_shared_tests(layerwise):
    check_method(layerwise)


def test_the_example_learns(layerwise):
    learner = mm.make_learner("layerwise", smooth_mlp(), lr=0.1)
    before = learner.meta_loss(point_tasks())
    optimizer = torch.optim.Adam(learner.parameters(), lr=1e-2)
    for _ in range(20):
        optimizer.zero_grad()
        learner.meta_loss(point_tasks()).backward()
        optimizer.step()
    assert learner.meta_loss(point_tasks()).item() < before.item()
