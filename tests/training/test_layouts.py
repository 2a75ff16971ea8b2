"""Memory layouts: an optimiser gets each gradient in the strides of its parameter."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch

import metamirror as mm
from metamirror.storage import checkpoint
from metamirror.training.distributed import ALONE
from metamirror.training.outer_step import descend, meta_gradient
from tests.runs import Pictures

OPTIMISERS = {
    "adam": partial(torch.optim.Adam, foreach=False),
    "foreach adam": partial(torch.optim.Adam, foreach=True),
    "fused adam": partial(torch.optim.Adam, fused=True),
    "sgd": partial(torch.optim.SGD, momentum=0.9, nesterov=True),
    "fused sgd": partial(torch.optim.SGD, momentum=0.9, nesterov=True, fused=True),
}
LAYOUTS = {"contiguous": torch.contiguous_format, "channels last": torch.channels_last}


def built(layout: str, optimiser: str) -> tuple[mm.Learner, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = mm.models.Conv4(ways=3, channels=3, image_size=28, width=4)
    learner = mm.make_learner("metasgd", model.double(), steps=1, lr=0.1)
    learner = learner.to(memory_format=LAYOUTS[layout])
    return learner, OPTIMISERS[optimiser](learner.parameters(), lr=0.01)


class Coloured(Pictures):
    """Images of three channels: with one, both layouts have the same strides."""

    def task(self, step: int, index: int) -> mm.Task:
        support, query = super().task(step, index)
        return mm.Task(*(mm.Batch(x.repeat(1, 3, 1, 1), y) for x, y in (support, query)))


STREAM = Coloured("train", shots=1, queries=2, seed=0, batch=2)


def outer_step(learner: mm.Learner, optimizer: torch.optim.Optimizer, step: int) -> float:
    parameters = checkpoint.parameters_of(optimizer)
    gradient = meta_gradient(learner, parameters, STREAM, step, ALONE)
    descend(optimizer, gradient.flat, 1.0)
    return gradient.loss


@pytest.mark.parametrize("optimiser", OPTIMISERS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_layout_changes_no_step(layout: str, optimiser: str):
    learner, optimizer = built(layout, optimiser)
    plain, reference = built("contiguous", "adam" if "adam" in optimiser else "sgd")
    for step in range(3):
        assert outer_step(learner, optimizer, step) == pytest.approx(
            outer_step(plain, reference, step)
        )
    if layout == "channels last":
        assert any(not p.is_contiguous() for p in learner.parameters())
    for (name, p), q in zip(learner.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-9, msg=name)


@pytest.mark.parametrize("optimiser", OPTIMISERS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_checkpoint_keeps_the_layout(layout: str, optimiser: str, tmp_path: Path):
    learner, optimizer = built(layout, optimiser)
    outer_step(learner, optimizer, 0)
    content = checkpoint.pack(learner, optimizer, checkpoint.TrainingState(), {})
    other, its_own = built(layout, optimiser)
    checkpoint.unpack(content, "a checkpoint", other, its_own)
    for each, moves in ((learner, optimizer), (other, its_own)):
        outer_step(each, moves, 1)
    for p, q in zip(learner.parameters(), other.parameters(), strict=True):
        assert p.stride() == q.stride()
        assert torch.equal(p, q)
