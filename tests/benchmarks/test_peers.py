"""What the benchmark compares is the same computation."""

from __future__ import annotations

import pytest
import torch

from metamirror.experiments.cost import Workload
from peer_programs import ADAPTATIONS, META_GRADIENTS, largest_difference, plain

# An odd size, so that pooling leaves a row out.
TINY = Workload(shape=(3, 21, 21), ways=3, shots=2, queries=3, width=6, steps=2, tasks=2)


def built(program):
    name = program.__name__.removeprefix("adapt_")
    if name in ("higher", "torchopt"):
        pytest.importorskip(name, reason=f"{name} is not installed: the extra `bench` has it")
    return program(TINY, torch.float64)


@pytest.mark.parametrize("program", META_GRADIENTS.values())
def test_every_program_has_the_meta_gradient_of_a_plain_loop(program):
    agrees(built(program), META_GRADIENTS["plain torch"])


@pytest.mark.parametrize("program", ADAPTATIONS.values())
def test_every_program_predicts_what_a_plain_loop_does(program):
    agrees(built(program), ADAPTATIONS["plain torch"])


def agrees(work, plain):
    expected = plain(TINY, torch.float64)()
    # Twice: the second iteration must begin where the first did.
    for found in (work(), work()):
        assert len(found) == len(expected)
        for f, e in zip(found, expected, strict=True):
            torch.testing.assert_close(f, e, rtol=1e-8, atol=1e-10 * e.abs().max().item())


def test_a_program_that_does_less_would_be_noticed():
    programs = {
        "plain torch": plain,
        "cheat": lambda work, dtype: plain(
            Workload(**{**vars(work), "steps": work.steps - 1}), dtype
        ),
    }
    found = largest_difference(programs, ("plain torch", "cheat"), TINY)
    assert found["cheat"] > 1e-4
