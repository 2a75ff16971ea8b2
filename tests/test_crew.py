"""Tasks shared by processes: the same to the bit, and nobody left behind or waiting."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import metamirror as mm
from metamirror.crew import CrewError, processes_for
from networks import conv4, image_tasks


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


@pytest.mark.parametrize("method", ["maml", "metakfo", "blockiaf", "gradnet", "mtnet", "warpgrad"])
def test_the_meta_gradient_is_the_same_to_the_bit_and_follows_the_learner(method: str):
    tasks, learner = image_tasks(16, count=3), learner_of(method)
    with mm.Crew(learner, 2) as crew:
        for _ in range(2):
            (losses, accuracies), grads = learner.meta_gradient(tasks, seeds=[0, 1, 2])
            found = learner.meta_gradient(tasks, seeds=[0, 1, 2], crew=crew)
            assert torch.equal(found[0].loss, losses)
            assert torch.equal(found[0].accuracy, accuracies)
            assert all(torch.equal(a, b) for a, b in zip(grads, found[1], strict=True))
            with torch.no_grad():
                for p in learner.parameters():
                    p.add_(0.01)


def test_any_parameters_and_any_number_of_tasks():
    learner, tasks = learner_of("metasgd"), image_tasks(16, count=2)  # one idles
    some = [learner.model.head.bias, learner.model.blocks[0].conv.weight]
    with mm.Crew(learner, 3) as crew:
        _, expected = learner.meta_gradient(tasks, some)
        _, found = learner.meta_gradient(tasks, some, crew=crew)
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


def test_an_error_of_another_process_is_the_callers_and_ends_the_crew():
    learner, tasks = mm.make_learner("maml", Grumbler().double(), steps=1), image_tasks(16)
    with mm.Crew(learner, 2) as crew:
        with pytest.raises(ArithmeticError, match="not at home"):
            learner.meta_gradient(tasks, crew=crew)
        with pytest.raises(CrewError, match="make a new one"):
            learner.meta_gradient(tasks, crew=crew)


def test_a_process_that_is_killed_is_noticed():
    learner = learner_of("maml")
    with mm.Crew(learner, 2) as crew:
        ((process, _),) = crew._others
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(CrewError, match=r"killed by SIGKILL; the machine may lack the memory"):
            learner.meta_gradient(image_tasks(16), crew=crew)


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks for processes in /proc")
def test_the_others_end_with_the_first_however_it_ends():
    script = (
        "import os, signal, metamirror as mm\n"
        "if __name__ == '__main__':\n"
        "    learner = mm.make_learner('maml', mm.models.Conv4(5, 1, 16, 4))\n"
        "    crew = mm.Crew(learner, 2)\n"
        "    print(crew._others[0][0].pid, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL
    pid, deadline = int(done.stdout), time.monotonic() + 60
    while is_there(pid):
        assert time.monotonic() < deadline, "a process was left behind"
        time.sleep(0.1)


def test_what_a_crew_cannot_do_is_said():
    learner, tasks = learner_of("maml"), image_tasks(16)
    with pytest.raises(ValueError, match="processes is 0"):
        mm.Crew(learner, 0)
    with pytest.raises(ValueError, match="leave vectorize off"):
        mm.Crew(mm.make_learner("maml", conv4(), vectorize=True), 2)
    with pytest.raises(ValueError, match="do without a crew"):
        mm.Crew(mm.make_learner("maml", conv4(), loss=lambda a, b: (a - b).mean()), 2)
    with (
        mm.Crew(learner_of("maml"), 1) as crew,
        pytest.raises(ValueError, match="another learner"),
    ):
        learner.meta_gradient(tasks, crew=crew)


def test_where_processes_are_taken_by_themselves():
    small, flat = learner_of("maml"), mm.make_learner("maml", mm.models.MLP(1, 1))
    assert processes_for(small, (1, 28, 28), 4) == 2
    assert processes_for(small, (1, 28, 28), 1) == 1
    assert processes_for(small, (3, 84, 84), 4) == 1
    assert processes_for(flat, (1,), 4) == 1
