"""The meta-gradient task by task: the same as by differentiating the loss, on any threads."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor, nn

import metamirror as mm
from metamirror.core.task_threads import over_tasks
from metamirror.testing.methods import meta_gradient
from metamirror.testing.networks import smooth_mlp
from tests.networks import conv4, image_tasks, point_tasks


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def shaken(spec: str, model: nn.Module, **options: object) -> mm.Learner:
    torch.manual_seed(2)
    learner = mm.make_learner(spec, model, steps=2, lr=0.1, **options)
    with torch.no_grad():
        for p in learner.parameters():
            p.add_(0.02 * torch.randn_like(p))
    return learner


def relative(found: list[Tensor], expected: dict[str, Tensor]) -> float:
    a, b = (torch.cat([g.flatten() for g in grads]) for grads in (found, expected.values()))
    return float((a - b).norm() / b.norm())


UNROLLED = {"adjoint": "unrolled"}
WAYS = [{}, {"recompute": True}, {"vectorize": True, **UNROLLED}]


@pytest.mark.parametrize("options", WAYS, ids=str)
@pytest.mark.parametrize("spec", list(mm.METHODS))
def test_it_is_the_gradient_of_the_meta_loss(spec: str, options: dict[str, object]):
    tasks = image_tasks(16)
    # Some methods have another adjoint of their own.
    expected = meta_gradient(shaken(spec, conv4(), **(UNROLLED if options else {})), tasks)
    learner = shaken(spec, conv4(), **options)
    (losses, accuracies), found = learner.meta_gradient(tasks, seeds=[0, 1])
    assert relative(found, expected) < (1e-8 if spec == "ecml" else 1e-10)
    torch.testing.assert_close(losses.mean(), learner.meta_loss(tasks, seeds=[0, 1]).detach())
    assert losses.shape == accuracies.shape == (2,)
    assert not losses.requires_grad


@pytest.mark.parametrize("spec", ["maml", "mtnet", "metakfo", "blockiaf", "warpgrad"])
def test_threads_change_no_bit(spec: str, threads):
    tasks, found = image_tasks(16, count=3), []
    for count in (1, 2, 3):
        threads(count)
        (losses, _), grads = shaken(spec, conv4()).meta_gradient(tasks, seeds=[0, 1, 2])
        found.append([losses, *grads])
        assert torch.get_num_threads() == count
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_tasks_of_a_convolutional_model_run_in_threads_of_their_own(threads):
    threads(2)
    learner, names = mm.make_learner("maml", conv4()), []
    barrier = threading.Barrier(2, timeout=60)

    def note(double: mm.Learner, i: int) -> int:
        barrier.wait()  # passes only if two are at work at the same time
        names.append((threading.current_thread().name, torch.get_num_threads()))
        assert double is not learner
        assert double.model.head.weight is learner.model.head.weight
        return i

    assert list(over_tasks(learner, note, range(4))) == [0, 1, 2, 3]
    assert len({name for name, _ in names}) == 2
    assert {count for _, count in names} == {1}


def test_a_small_model_stays_in_one_thread(threads):
    threads(2)
    learner = mm.make_learner("maml", smooth_mlp())
    used = list(over_tasks(learner, lambda double, i: double is learner, range(3)))
    assert used == [True] * 3


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(nn.functional.dropout(self.conv(x).mean((2, 3)), 0.5))


def test_a_model_that_draws_noise_draws_it_in_the_order_of_the_tasks(threads):
    threads(2)
    found = []
    for _ in range(3):
        learner = mm.make_learner("maml", Noisy().double(), steps=1)
        learner.load_state_dict(
            {n: torch.full_like(p, 0.1) for n, p in learner.state_dict().items()}
        )
        torch.manual_seed(5)
        found.append(learner.meta_gradient(image_tasks(8, count=4))[0].loss)
        assert learner.draws_noise
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    torch.manual_seed(5)
    torch.testing.assert_close(learner.task_losses(image_tasks(8, count=4)).loss, found[0])


class Uncopied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x).mean((2, 3))


def test_what_cannot_be_copied_runs_in_one_thread(threads):
    threads(2)
    learner = mm.make_learner("maml", Uncopied().double())
    learner.model.lock = threading.Lock()
    (losses, _), _ = learner.meta_gradient(image_tasks(8))
    assert torch.isfinite(losses).all()


def test_an_error_in_a_thread_is_the_callers(threads):
    threads(2)
    learner = mm.make_learner("maml", conv4())

    def fail(double: mm.Learner, i: int) -> int:
        raise ValueError(f"task {i} is bad")

    with pytest.raises(ValueError, match="task 0 is bad"):
        list(over_tasks(learner, fail, range(4)))


def test_a_choice_of_parameters():
    learner, tasks = shaken("blockiaf", smooth_mlp()), point_tasks()
    every = dict(learner.named_parameters())
    chosen = {n: p for n, p in every.items() if n.endswith("bias")}
    expected = meta_gradient(learner, tasks)
    _, found = learner.meta_gradient(tasks, list(chosen.values()), seeds=[0, 1])
    assert relative(found, {n: expected[n] for n in chosen}) < 1e-10
