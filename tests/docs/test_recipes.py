"""The scripts of docs/recipes.md: short, all on the page, and run as they stand."""

from __future__ import annotations

import copy
import importlib.util
import os
import re
import runpy
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch
from torch import nn

import metamirror as mm

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "recipes"
RECIPES = sorted(file.name for file in FOLDER.glob("*.py"))
LEARN2LEARN = "learn2learn 0.2.0, the newest release, does not compile with Python 3.11"


def needs(package: str, reason: str = "") -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(reason or f"{package} is not installed: pip install metamirror[recipes]")


@pytest.fixture(autouse=True)
def _anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def run(name: str) -> dict[str, object]:
    """Run a script in this process, as `python NAME` would."""
    with torch.random.fork_rng():
        return runpy.run_path(str(FOLDER / name), run_name="__main__")


def run_apart(name: str, *launcher: str, **environment: str) -> str:
    """Run a script in a process of its own: frameworks leave much behind. Return what it prints."""
    own = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(mm.__file__).parents[1]), **environment}
    done = subprocess.run(
        [sys.executable, *launcher, str(FOLDER / name)],
        env={**os.environ, **own},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_forty_lines(name):
    assert len((FOLDER / name).read_text().splitlines()) <= 40


def test_the_page_includes_every_recipe_once():
    page = (ROOT / "docs" / "recipes.md").read_text()
    assert sorted(re.findall(r'^--8<-- "examples/recipes/(.+)"$', page, re.MULTILINE)) == RECIPES
    assert sorted(re.findall(r'title="examples/recipes/(.+)"', page)) == RECIPES


def test_the_plain_loop(capsys):
    run("plain_loop.py")
    assert "after" in capsys.readouterr().out
    net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 5))
    assert mm.load("start", model=net).steps == 3


def test_the_accumulated_gradient_is_that_of_all_tasks():
    found = run("schedule.py")
    learner, tasks = found["learner"], found["tasks"]
    learner.zero_grad()
    for part in range(4):
        (learner.meta_loss(tasks[part]) / 4).backward()
    every = [tasks.task(step, i) for step in range(4) for i in range(tasks.batch)]
    _, gradient = learner.meta_gradient(every)
    for parameter, whole in zip(learner.parameters(), gradient, strict=True):
        torch.testing.assert_close(parameter.grad, whole, rtol=1e-4, atol=1e-6)


def test_a_loop_of_higher_and_its_port_have_the_same_losses():
    needs("higher")
    found = run("from_higher.py")
    assert len(set(found["ours"])) == 20
    assert found["ours"] == pytest.approx(found["theirs"], abs=1e-12)


def test_a_loop_of_learn2learn_and_its_port_have_the_same_losses():
    needs("learn2learn", LEARN2LEARN)
    found = run("from_learn2learn.py")
    assert found["ours"] == pytest.approx(found["theirs"], abs=1e-12)


class StandIn(nn.Module):
    """What the recipe uses of learn2learn's MAML, by its documentation."""

    def __init__(self, module, lr, first_order, parameters=None):
        super().__init__()
        self.module, self.lr, self.second = module, lr, not first_order
        self.own = parameters or dict(module.named_parameters())

    def clone(self):
        return StandIn(self.module, self.lr, not self.second, copy.copy(self.own))

    def adapt(self, loss):
        grads = torch.autograd.grad(loss, list(self.own.values()), create_graph=self.second)
        pairs = zip(self.own.items(), grads, strict=True)
        self.own = {name: p - self.lr * grad for (name, p), grad in pairs}

    def forward(self, x):
        return torch.func.functional_call(self.module, self.own, (x,))


def test_the_port_of_learn2learn_has_the_losses_of_a_stand_in(monkeypatch):
    """For where learn2learn cannot be installed."""
    module = types.ModuleType("learn2learn")
    module.algorithms = types.SimpleNamespace(MAML=StandIn)
    monkeypatch.setitem(sys.modules, "learn2learn", module)
    found = run("from_learn2learn.py")
    assert len(set(found["ours"])) == 20
    assert found["ours"] == pytest.approx(found["theirs"], abs=1e-12)


@pytest.mark.slow
def test_accelerate_gives_the_same_with_one_process_and_two():
    needs("accelerate")
    cpu = {"ACCELERATE_USE_CPU": "true"}
    two = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    losses = [
        re.findall(rf"{count} process.*: (loss .*)", run_apart("with_accelerate.py", *how, **cpu))
        for count, how in ((1, ()), (2, two))
    ]
    assert len(losses[0]) == 1
    assert losses[0] == losses[1]
    assert mm.load("start").steps == 1


@pytest.mark.slow
def test_lightning_trains_and_validates():
    needs("lightning")
    assert "max_steps=100" in run_apart("with_lightning.py")
    assert list(Path("checkpoints").glob("*.ckpt"))


@pytest.mark.slow
def test_wandb_keeps_losses_and_accuracies():
    needs("wandb")
    run_apart("with_wandb.py", WANDB_MODE="offline", WANDB_SILENT="true")
    (kept,) = Path("wandb").glob("offline-run-*/*.wandb")
    for name in (b"loss", b"val_accuracy", b"val_ci95", b"metasgd"):
        assert name in kept.read_bytes()
