"""Tasks shared by processes: the same to the bit, and nobody left behind or waiting."""

from __future__ import annotations

import gc
import os
import re
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest
import torch

import metamirror as mm
from metamirror.parallel.task_pool import TaskPoolError, processes_for
from metamirror.training.config import RunConfig
from metamirror.training.train import train
from tests.networks import conv4, image_tasks


@pytest.fixture(autouse=True)
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    assert torch.get_num_threads() == 2
    torch.set_num_threads(before)


def learner_of(method: str) -> mm.Learner:
    torch.manual_seed(0)
    return mm.make_learner(method, conv4(), steps=2, lr=0.1)


def is_there(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.fixture
def another_thread() -> Iterator[None]:
    """A thread of Python beside the test's: processes are not forked then."""
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    yield
    over.set()
    thread.join()


@pytest.mark.parametrize("method", ["maml", "metakfo", "blockiaf", "gradnet", "mtnet", "warpgrad"])
def test_the_meta_gradient_is_the_same_to_the_bit_and_follows_the_learner(method: str):
    same_to_the_bit(method)


def test_it_is_so_where_other_threads_run_as_well(another_thread):
    same_to_the_bit("maml")


def same_to_the_bit(method: str) -> None:
    tasks, learner = image_tasks(16, count=3), learner_of(method)
    with mm.TaskPool(learner, 2) as pool:
        for _ in range(2):
            (losses, accuracies), grads = learner.meta_gradient(tasks, seeds=[0, 1, 2])
            found = learner.meta_gradient(tasks, seeds=[0, 1, 2], pool=pool)
            assert torch.equal(found[0].loss, losses)
            assert torch.equal(found[0].score, accuracies)
            assert all(torch.equal(a, b) for a, b in zip(grads, found[1], strict=True))
            with torch.no_grad():
                for p in learner.parameters():
                    p.add_(0.01)


def test_processes_and_threads_know_how_far_training_is():
    tasks, learner = image_tasks(16, count=3), learner_of("mamlpp")
    parameters = [p for p in learner.parameters() if p.requires_grad]
    seen = []
    with mm.TaskPool(learner, 2) as pool:
        for learner.progress in (0.05, 0.1, 0.3, 1.0):
            alone = torch.autograd.grad(
                learner.meta_loss(tasks), parameters, materialize_grads=True
            )
            (losses, _), threads = learner.meta_gradient(tasks)
            (again, _), processes = learner.meta_gradient(tasks, pool=pool)
            assert torch.equal(losses, again)
            for a, b, c in zip(alone, threads, processes, strict=True):
                assert torch.equal(b, c)
                torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-12)
            seen.append(torch.cat([g.flatten() for g in processes]))
    # While losses anneal, then first order, then second: no two alike.
    assert len({tuple(gradient.tolist()) for gradient in seen}) == 4


def test_any_parameters_and_any_number_of_tasks():
    learner, tasks = learner_of("metasgd"), image_tasks(16, count=2)  # one idles
    some = [learner.model.head.bias, learner.model.blocks[0].conv.weight]
    with mm.TaskPool(learner, 3) as pool:
        _, expected = learner.meta_gradient(tasks, some)
        _, found = learner.meta_gradient(tasks, some, pool=pool)
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


class Grumbler(mm.models.Conv4):
    """Fails in other processes than its first."""

    def __init__(self) -> None:
        super().__init__(3, 1, 16, 4)
        self.home = os.getpid()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if os.getpid() != self.home:
            raise ArithmeticError("not at home")
        return super().forward(x)


def test_an_error_of_another_process_is_the_callers_and_the_pool_goes_on():
    learner, tasks = mm.make_learner("maml", Grumbler().double(), steps=1), image_tasks(16)
    with mm.TaskPool(learner, 2) as pool:
        for _ in range(2):
            with pytest.raises(ArithmeticError, match="not at home") as caught:
                learner.meta_gradient(tasks, pool=pool)
            assert "in forward" in caught.value.__notes__[0]  # where it happened
        learner.model.home = 0  # and now it fails here
        with pytest.raises(ArithmeticError, match="not at home"):
            learner.meta_gradient(tasks, pool=pool)
    with pytest.raises(TaskPoolError, match="make a new one"):
        learner.meta_gradient(tasks, pool=pool)


def test_a_step_that_has_no_eigenvalues_does_not_end_the_pool():
    learner, tasks = learner_of("ecml"), image_tasks(16)
    with mm.TaskPool(learner, 2) as pool:
        with torch.no_grad():
            learner.model.blocks[3].norm.bias.fill_(float("nan"))
        with pytest.raises(torch.linalg.LinAlgError):
            learner.meta_gradient(tasks, pool=pool)
        with torch.no_grad():
            learner.model.blocks[3].norm.bias.zero_()
        (losses, _), _ = learner.meta_gradient(tasks, pool=pool)
    assert torch.isfinite(losses).all()


@pytest.mark.parametrize(
    "change",
    [
        lambda learner: learner.configure(steps=3),
        lambda learner: learner.configure(lr=0.5),
        lambda learner: learner.configure(norm="inductive"),
        lambda learner: learner.float(),
        lambda learner: learner.eval(),
        lambda learner: learner.model.head.weight.requires_grad_(False),
    ],
    ids=["steps", "lr", "norm", "type", "mode", "frozen"],
)
def test_a_learner_that_changed_otherwise_than_by_training_is_refused(change):
    learner = learner_of("maml")
    with mm.TaskPool(learner, 1) as pool:
        change(learner)
        with pytest.raises(ValueError, match="changed since this pool was made"):
            learner.meta_gradient(image_tasks(16), pool=pool)


class Counter(mm.models.Conv4):
    """Notes how many threads it runs with."""

    seen: ClassVar[list[int]] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(torch.get_num_threads())
        return super().forward(x)


def test_a_task_has_as_many_threads_as_without_a_pool():
    learner = mm.make_learner("maml", Counter(3, 1, 16, 4).double(), steps=1)
    learner.task_losses(tasks := image_tasks(16, count=3))  # tried out with all threads
    torch.set_num_threads(4)
    try:
        Counter.seen.clear()
        for pool in (mm.TaskPool(learner, 1), None):
            learner.meta_gradient(tasks, pool=pool)
        assert set(Counter.seen) == {1}
    finally:
        torch.set_num_threads(2)


@pytest.mark.skipif(sys.platform != "linux", reason="reads what Linux says of a process")
def test_processes_share_the_pages_of_torch():
    script = (
        "import metamirror as mm\n"
        "learner = mm.make_learner('maml', mm.models.MLP(1, 1))\n"
        "tasks = mm.tasks('sinusoid', shots=5, batch=2)[0]\n"
        "with mm.TaskPool(learner, 2) as pool:\n"
        "    learner.meta_gradient(tasks, pool=pool)\n"
        "    print(open(f'/proc/{pool._others[0][0].pid}/smaps_rollup').read())\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    sizes = {kind: int(kb) for kind, kb in re.findall(r"(\w+):\s*(\d+) kB", done.stdout)}
    own = sizes["Private_Clean"] + sizes["Private_Dirty"]
    # An import of torch alone writes 130 MB.
    assert own < 80_000
    assert sizes["Rss"] > 150_000


def test_a_learner_that_other_processes_cannot_read_is_named(monkeypatch, another_thread):
    notebook = types.ModuleType("notebook_of_this_process")
    monkeypatch.setitem(sys.modules, notebook.__name__, notebook)
    notebook.Net = type("Net", (mm.models.Conv4,), {"__module__": notebook.__name__})
    learner = mm.make_learner("maml", notebook.Net(3, 1, 16, 4).double(), steps=1)
    with mm.TaskPool(learner, 2) as pool, pytest.raises(ValueError, match="not in a notebook"):
        learner.meta_gradient(image_tasks(16), pool=pool)


def test_a_process_that_is_killed_is_noticed():
    learner = learner_of("maml")
    with mm.TaskPool(learner, 2) as pool:
        ((process, _),) = pool._others
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(
            TaskPoolError, match=r"killed by SIGKILL; the machine may lack the memory"
        ):
            learner.meta_gradient(image_tasks(16), pool=pool)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").exists(), reason="looks for processes in /proc")
def test_the_others_end_with_the_first_however_it_ends():
    script = (
        "import os, signal, metamirror as mm\n"
        "if __name__ == '__main__':\n"
        "    learner = mm.make_learner('maml', mm.models.Conv4(5, 1, 16, 4))\n"
        "    pool = mm.TaskPool(learner, 2)\n"
        "    print(pool._others[0][0].pid, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL
    pid, deadline = int(done.stdout), time.monotonic() + 60
    while is_there(pid):
        assert time.monotonic() < deadline, "a process was left behind"
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").exists(), reason="looks for processes in /proc")
def test_others_outlive_the_signals_of_a_whole_job_and_end_with_the_pool():
    learner = learner_of("maml")
    pool = mm.TaskPool(learner, 2)
    ((process, _),) = pool._others
    pid = process.pid
    for number in (signal.SIGINT, signal.SIGTERM):  # at once: while it still starts
        os.kill(pid, number)
    (losses, _), _ = learner.meta_gradient(image_tasks(16), pool=pool)
    os.kill(pid, signal.SIGTERM)
    again = learner.meta_gradient(image_tasks(16), pool=pool)[0].loss
    assert torch.equal(losses, again)
    del pool, process  # nobody has closed it
    gc.collect()
    assert not Path(f"/proc/{pid}").exists()


def test_what_a_pool_cannot_do_is_said():
    learner, tasks = learner_of("maml"), image_tasks(16)
    with pytest.raises(ValueError, match="processes is 0"):
        mm.TaskPool(learner, 0)
    with pytest.raises(ValueError, match="leave vectorize off"):
        mm.TaskPool(mm.make_learner("maml", conv4(), vectorize=True), 2)
    with pytest.raises(ValueError, match="use no pool"):
        mm.TaskPool(mm.make_learner("maml", conv4(), loss=lambda a, b: (a - b).mean()), 2)
    with (
        mm.TaskPool(learner_of("maml"), 1) as pool,
        pytest.raises(ValueError, match="another learner"),
    ):
        learner.meta_gradient(tasks, pool=pool)


def test_where_processes_are_taken_by_themselves():
    small, flat = learner_of("maml"), mm.make_learner("maml", mm.models.MLP(1, 1))
    assert processes_for(small, (1, 28, 28), 4) == 2
    assert processes_for(small, (1, 28, 28), 1) == 1
    assert processes_for(small, (3, 84, 84), 4) == 1
    assert processes_for(flat, (1,), 4) == 1


@pytest.mark.parametrize("processes", [0, -1, 5])
def test_a_run_with_processes_that_its_tasks_have_no_use_for_is_refused(processes, tmp_path):
    config = RunConfig(method="maml", data="glyphs", tasks_per_step=4)
    with pytest.raises(ValueError, match=f"processes is {processes}; they share the 4 tasks"):
        train(config, tmp_path / "run", processes=processes)
    assert not (tmp_path / "run").exists()
