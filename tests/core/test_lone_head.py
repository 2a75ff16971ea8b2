"""Where the head alone adapts, the body runs once for all steps of a task."""

import pytest
import torch
from torch import Tensor, nn

import metamirror as mm


class Counted(nn.Identity):
    """Counts its calls."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x


class Elsewhere(mm.models.Conv4):
    """The same model, which the library does not know to end in its head."""


def learner_of(kind: type[mm.models.Conv4], method: str, **settings: object) -> mm.Learner:
    torch.manual_seed(0)
    model = kind(ways=3, channels=1, width=4, image_size=16).double()
    return mm.make_learner(method, model, steps=3, lr=0.2, **settings)


def tasks() -> mm.Task:
    generator = torch.Generator().manual_seed(1)
    sets = (
        mm.Batch(
            torch.randn(2, 3 * shots, 1, 16, 16, generator=generator, dtype=torch.float64),
            torch.arange(3).repeat(shots).expand(2, -1),
        )
        for shots in (1, 2)
    )
    return mm.Task(*sets)


CASES = {
    "anil": {},
    "anil, inductive": {"norm": "inductive"},
    "anil, first order": {"first_order": True},
    "anil, rematerialised": {"adjoint": "rematerialised"},
    "maml": {"adapts": "head"},
    "mamlpp": {"adapts": "head"},
    "metacurvature": {"adapts": "head", "prior": "isotropic:0.1"},
    "warpgrad:objective=trajectory:start_rule=maml": {"adapts": "head"},
    "blockiaf": {"adapts": "head"},
    "maml:start=prototypes": {"adapts": "head"},
}


@pytest.mark.parametrize("case", CASES)
def test_the_meta_gradient_is_that_of_the_whole_model(case: str) -> None:
    method = case.partition(",")[0]
    learners = [learner_of(kind, method, **CASES[case]) for kind in (mm.models.Conv4, Elsewhere)]
    results = [learner.meta_gradient(tasks(), seeds=[1, 2]) for learner in learners]
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("adapts", "calls"), [("head", 2), ("all", 4)])
def test_the_body_runs_once_for_the_support_set_and_once_for_the_query(
    adapts: str, calls: int
) -> None:
    learner = learner_of(mm.models.Conv4, "maml", adapts=adapts)
    counted = Counted()
    learner.model.blocks.append(counted)
    tasks_of_one = mm.Task(*(mm.Batch(b.x[:1], b.y[:1]) for b in tasks()))
    learner.meta_gradient(tasks_of_one)
    counted.calls = 0
    learner.meta_gradient(tasks_of_one)
    assert counted.calls == calls
