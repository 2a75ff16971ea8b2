"""What the benchmark compares is the same computation."""

from __future__ import annotations

import pytest
import torch

from metamirror.experiments.cost import Workload
from peer_programs import ADAPTATIONS, META_GRADIENTS, Features, largest_difference

# An odd size, so that pooling leaves a row out.
TINY = Workload(shape=(3, 21, 21), ways=3, shots=2, queries=3, width=6, steps=2, tasks=2)


FEATURES = [
    Features(inputs=7, hidden=hidden, ways=3, shots=2, queries=3, steps=2, tasks=3)
    for hidden in ((), (4,))
]


def built(programs, name, work=TINY):
    if name in ("higher", "torchopt"):
        pytest.importorskip(name, reason=f"{name} is not installed: the extra `bench` has it")
    return programs[name](work, torch.float64)


@pytest.mark.parametrize("name", META_GRADIENTS)
def test_every_program_has_the_meta_gradient_of_a_plain_loop(name):
    agrees(built(META_GRADIENTS, name), META_GRADIENTS["plain torch"])


@pytest.mark.parametrize("work", FEATURES)
@pytest.mark.parametrize("name", META_GRADIENTS)
def test_every_program_has_it_on_features(name, work):
    agrees(built(META_GRADIENTS, name, work), META_GRADIENTS["plain torch"], work)


@pytest.mark.parametrize("name", ADAPTATIONS)
def test_every_program_predicts_what_a_plain_loop_does(name):
    agrees(built(ADAPTATIONS, name), ADAPTATIONS["plain torch"])


def agrees(program, plain, work=TINY):
    expected = plain(work, torch.float64)()
    # Twice: the second iteration must begin where the first did.
    for found in (program(), program()):
        assert len(found) == len(expected)
        for f, e in zip(found, expected, strict=True):
            torch.testing.assert_close(f, e, rtol=1e-8, atol=1e-10 * e.abs().max().item())


def test_a_program_that_does_less_would_be_noticed():
    plain = META_GRADIENTS["plain torch"]
    programs = {
        "plain torch": plain,
        "cheat": lambda work, dtype: plain(
            Workload(**{**vars(work), "steps": work.steps - 1}), dtype
        ),
    }
    found = largest_difference(programs, ("plain torch", "cheat"), TINY)
    assert found["cheat"] > 1e-4
