"""Tasks in processes that share this one's memory."""

from __future__ import annotations

import os
import signal

import pytest
import torch

import metamirror as mm
from metamirror import meta_gradient
from metamirror.forked import can_fork, over_tasks_forked
from networks import conv4, image_tasks

pytestmark = pytest.mark.skipif(not can_fork(), reason="forks go on computing on Linux alone")


@pytest.fixture(autouse=True)
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    assert torch.get_num_threads() == 2
    torch.set_num_threads(before)


def children() -> list[str]:
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return file.read().split()


def test_results_come_in_order_from_several_processes_that_end():
    before = children()

    def who(i: int) -> list[torch.Tensor | None]:
        return [torch.tensor(i), None, torch.tensor(os.getpid()), torch.full((3,), float(i))]

    found = list(over_tasks_forked(who, range(5), 2))
    assert [int(r[0]) for r in found] == [0, 1, 2, 3, 4]
    assert [r[1] for r in found] == [None] * 5
    assert {int(r[2]) for r in found[::2]} == {os.getpid()}
    assert len({int(r[2]) for r in found}) == 2
    assert torch.equal(found[3][3], torch.full((3,), 3.0))
    assert children() == before


@pytest.mark.parametrize("bad", [0, 1])
def test_an_error_is_the_callers(bad: int):
    def fail(i: int) -> list[torch.Tensor | None]:
        if i == bad:
            raise torch.linalg.LinAlgError(f"task {i} is bad")
        return [torch.tensor(i)]

    before = children()
    with pytest.raises(torch.linalg.LinAlgError, match=f"task {bad} is bad"):
        list(over_tasks_forked(fail, range(4), 2))
    assert children() == before


def test_a_process_that_is_killed_is_noticed():
    def die(i: int) -> list[torch.Tensor | None]:
        if i == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return [torch.tensor(i)]

    with pytest.raises(MemoryError, match="has gone"):
        list(over_tasks_forked(die, range(4), 2))


@pytest.mark.parametrize("method", ["maml", "metakfo", "blockiaf", "mtnet"])
def test_the_meta_gradient_is_the_same_to_the_bit_as_in_threads(
    method: str, monkeypatch: pytest.MonkeyPatch
):
    tasks, found = image_tasks(16, count=3), []
    for small in (1 << 30, 0):
        monkeypatch.setattr(meta_gradient, "SMALL", small)
        torch.manual_seed(0)
        learner = mm.make_learner(method, conv4(), steps=2, lr=0.1)
        (losses, accuracies), grads = learner.meta_gradient(tasks, seeds=[0, 1, 2])
        found.append([losses, accuracies, *grads])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
