"""Pretraining: the gradient by hand, exact continuation, and a run like the others."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import metamirror as mm
from metamirror.cli.main import main
from metamirror.core.normalisation import BatchNorm, fused_normalisation
from metamirror.data.labelled_batches import LabelledBatches
from metamirror.experiments.inspection import inspect_run
from metamirror.report.page import write_report
from metamirror.storage import learner_file
from metamirror.storage.checkpoint import parameters_of
from metamirror.training.config import load_config
from metamirror.training.evaluate_run import evaluate_run
from metamirror.training.factory import build_learner, build_stream
from metamirror.training.label_source import LabelSource, make_classifier
from metamirror.training.outer_step import build_optimizer
from metamirror.training.pretrain import Pretraining, pretrain
from metamirror.training.train import train
from tests.refusals import assert_command_refused, assert_refused
from tests.runs import results, small
from tests.training.test_resume import GoneError


@pytest.fixture(scope="module")
def patterns(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Nine classes of train, three of val and three of test: coarse patterns of colours, noise."""
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(15), 12)
    coarse = random.uniform(0, 255, (15, 3, 4, 4)).repeat(4, axis=2).repeat(4, axis=3)
    x = coarse[labels] + random.normal(scale=70, size=(180, 3, 16, 16))
    path = tmp_path_factory.mktemp("own") / "patterns.npz"
    split = np.array(["train"] * 108 + ["val"] * 36 + ["test"] * 36)
    np.savez(path, x=x.clip(0, 255).astype(np.uint8), y=labels, split=split)
    return f"arrays:{path}"


def tiny(data: str, **changes) -> Pretraining:
    settings = Pretraining(
        data=data, width=4, epochs=2, batch=20, ways=3, shots=2, queries=3, val_tasks=3
    )
    return replace(settings, **changes)


@pytest.fixture(scope="module")
def run(patterns: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "pretrained"
    pretrain(tiny(patterns, epochs=12, outer_lr=0.01), out)
    return out


# The gradient


def by_hand(model: mm.models.Conv4, x: Tensor, y: Tensor, weight, bias) -> Tensor:
    """The loss in plain operations."""
    for block in model.blocks:
        x = F.conv2d(x, block.conv.weight, padding=1)
        mean = x.mean((0, 2, 3), keepdim=True)
        var = x.var((0, 2, 3), unbiased=False, keepdim=True)
        x = (x - mean) / (var + 1e-5).sqrt()
        x = x * block.norm.weight.view(1, -1, 1, 1) + block.norm.bias.view(1, -1, 1, 1)
        x = F.max_pool2d(x.relu(), 2)
    logits = x.flatten(1) @ weight.T + bias
    return -logits.log_softmax(1)[torch.arange(len(y)), y].mean()


@pytest.mark.parametrize("norm", ["transductive", "inductive"])
def test_the_gradient_is_that_of_a_classifier_by_hand(patterns: str, norm: str):
    config = tiny(patterns, dtype="float64", norm=norm).config()
    stream = build_stream(config, "train", batch=1)
    learner = build_learner(config, stream)
    classifier = make_classifier(learner, 9)
    parameters = parameters_of(build_optimizer(config, learner, classifier))
    batches = LabelledBatches(stream.images, batch=20, seed=0)
    source = LabelSource(learner, classifier, parameters, batches, stream)
    found = source.gradient(3, stop=False)
    x, y = batches[3]
    loss = by_hand(learner.model, x.double(), y, classifier.weight, classifier.bias)
    assert found.loss == pytest.approx(loss.item(), rel=1e-6)  # pixels were divided in float32
    grads = torch.autograd.grad(loss, parameters, materialize_grads=True)
    expected = torch.cat([grad.flatten() for grad in grads])
    torch.testing.assert_close(found.flat, expected, rtol=1e-9, atol=1e-11)
    head = {id(p) for p in learner.model.head.parameters()}
    assert not head & {id(p) for p in parameters}, "the head of tasks rests"
    assert {id(p) for p in classifier.parameters()} <= {id(p) for p in parameters}


def test_the_fused_kernel_gives_the_same_gradient():
    torch.manual_seed(0)
    norm, x = BatchNorm(3).double(), torch.randn(6, 3, 4, 4, dtype=torch.float64)
    x.requires_grad_()
    torch.nn.init.normal_(norm.weight)

    def gradients() -> tuple[Tensor, ...]:
        return torch.autograd.grad(norm(x).sin().sum(), (x, norm.weight, norm.bias))

    plain = gradients()
    with fused_normalisation():
        fused = gradients()
    for one, other in zip(plain, fused, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


# Continuation


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"norm": "inductive", "augment": "colour,flip"},
        {"optimizer": "sgd", "schedule": "constant", "autocast": "bf16"},
        {"model": "resnet12", "width": 2, "dtype": "float64"},
    ],
    ids=str,
)
def test_resuming_is_exact(changes: dict, patterns: str, tmp_path: Path, monkeypatch):
    settings = tiny(patterns, **changes)
    pretrain(settings, tmp_path / "whole")
    real = LabelSource.gradient
    for at in (0, 3, 7):

        def failing(self, step, *, stop, at=at):
            if step == at:
                raise GoneError
            return real(self, step, stop=stop)

        with monkeypatch.context() as patch:
            patch.setattr(LabelSource, "gradient", failing)
            with pytest.raises(GoneError):
                pretrain(settings, tmp_path / "broken", resume=True)
    pretrain(settings, tmp_path / "broken", resume=True)
    assert results(tmp_path / "broken") == results(tmp_path / "whole")


def test_the_command_continues_a_run_with_its_own_settings(patterns, tmp_path, capsys):
    words = ["pretrain", "--out", str(tmp_path / "a"), "--resume"]
    flags = "--width 4 --epochs 1 --batch 20 --ways 3 --shots 2 --queries 3 --val-tasks 2"
    assert main([*words, "--data", patterns, *flags.split()]) == 0
    assert "done" in capsys.readouterr().out
    assert main(words) == 0
    assert "is finished: all 5 iterations are done" in capsys.readouterr().err
    assert_command_refused(capsys, main([*words, "--epochs", "2"]), "5 iterations, not 10")
    assert_command_refused(capsys, main([*words, "--seed", "2"]), "seed 0, not 2")
    again = ["pretrain", "--config", str(tmp_path / "a"), "--out", str(tmp_path / "b")]
    assert main(again) == 0
    assert results(tmp_path / "a") == results(tmp_path / "b")


# What it leaves


def test_it_learns_and_validates_after_every_epoch(run: Path, patterns: str):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [5 * n for n in range(1, 13)]
    first, last = lines[0], lines[-1]
    assert last["accuracy"] > 2 * first["accuracy"]
    assert last["outer_lr"] < 0.001 < first["outer_lr"] < 0.01
    kinds = [last["val_accuracy_1shot"], last["val_accuracy_2shot"]]
    assert last["val_accuracy"] == pytest.approx(np.mean(kinds))
    best = max(lines, key=lambda line: line["val_accuracy"])
    assert learner_file.step_of(run, "best") == best["step"]


def test_its_run_is_one_of_protonet(run: Path, patterns: str, tmp_path: Path):
    config = load_config(run)
    assert (config.method, config.steps, config.epochs, config.batch) == ("protonet", 0, 12, 20)
    assert (config.iterations, config.augment, config.outer_lr) == (60, "flip,shift", 0.01)
    learner = mm.load(run)
    assert learner.config["method"] == "protonet"
    untrained = build_learner(config, build_stream(config, "train"))
    tasks = mm.tasks(patterns, "test", ways=3, shots=1, queries=3)
    assert mm.evaluate(learner, tasks, 60).mean > mm.evaluate(untrained, tasks, 60).mean
    model = mm.FewShotClassifier(run)
    task = tasks.task(0, 0)
    model.fit(task.support.x.numpy(), task.support.y.numpy())
    assert model.predict(task.query.x.numpy()).shape == (9,)
    assert inspect_run(run, tasks=1, points=1)["method"] == "protonet"
    assert write_report(run, inspect_seconds=0).is_file()


def test_it_is_evaluated_with_any_number_of_shots(run: Path):
    found = [evaluate_run(run, tasks=3, shots=shots) for shots in (None, 1)]
    assert [f["shots"] for f in found] == [2, 1]
    names = sorted(p.stem for p in (run / "evaluations").glob("*.json"))
    assert names[1] == f"{names[0]}-shots-1", "neither result replaces the other"


def test_what_follows_from_the_settings(patterns: str, tmp_path: Path):
    assert tiny(patterns, optimizer="sgd").config().outer_lr == 0.1
    grey = np.random.default_rng(0).integers(0, 256, (60, 16, 16), dtype=np.uint8)
    np.savez(tmp_path / "g.npz", x=grey, y=np.repeat(np.arange(10), 6))
    data = f"arrays:{tmp_path / 'g.npz'}"
    pretrain(tiny(data, ways=2, shots=1, batch=1000, epochs=2), tmp_path / "run")
    config = load_config(tmp_path / "run")
    assert config.augment == "shift", "a letter in a mirror is another letter"
    images = len(LabelledBatches(mm.tasks(data, ways=2, queries=1).images, batch=1000, seed=0)[0].y)
    assert (config.batch, config.iterations, config.validate_every) == (images, 2, 1)
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert all("val_accuracy" in line for line in lines)
    assert "val_accuracy_1shot" not in lines[0], "there is one kind"


def test_vectors_are_pretrained_too(tmp_path: Path):
    random = np.random.default_rng(0)
    x = random.normal(size=(60, 6)).astype(np.float32)
    np.savez(tmp_path / "v.npz", x=x, y=np.repeat(np.arange(10), 6))
    settings = tiny(f"arrays:{tmp_path / 'v.npz'}", ways=2, shots=1, epochs=1)
    pretrain(settings, tmp_path / "run")
    assert load_config(tmp_path / "run").augment == "none"


# What is refused


def test_what_has_no_classes_is_refused(tmp_path: Path):
    assert_refused(lambda: pretrain(tiny("sinusoid"), tmp_path / "a"), "no labelled examples")
    assert not (tmp_path / "a").exists()


def test_a_pretraining_is_no_training_and_the_reverse(run: Path, tmp_path: Path, capsys):
    words = ["--config", str(run), "--out", str(tmp_path / "a")]
    assert_command_refused(capsys, main(["train", *words]), "epochs is 12", "as init")
    train(small(iterations=1), tmp_path / "maml")
    words[1] = str(tmp_path / "maml")
    assert_command_refused(capsys, main(["pretrain", *words]), "configuration of metamirror train")


@pytest.mark.parametrize("field", ["epochs", "batch"])
def test_counts_below_one_are_refused(field: str, patterns: str, tmp_path: Path):
    settings = tiny(patterns, **{field: 0})
    assert_refused(lambda: pretrain(settings, tmp_path / "a"), f"{field} is 0; it must be in 1")


def test_several_processes_are_refused(patterns: str, tmp_path: Path, monkeypatch):
    from metamirror.training import pretrain as module
    from metamirror.training.distributed import ALONE

    class Two:
        def __enter__(self):
            return replace(ALONE, world=2)

        def __exit__(self, *error):
            return None

    monkeypatch.setattr(module, "joined_ranks", lambda device: Two())
    assert_refused(lambda: pretrain(tiny(patterns), tmp_path / "a"), "without torchrun")


def test_a_loss_that_is_not_finite_stops_it(patterns: str, tmp_path: Path, monkeypatch):
    real = LabelSource.features
    monkeypatch.setattr(LabelSource, "features", lambda self, x: real(self, x) / 0)
    words = (
        r"gradient of pretraining is not finite at step 0: lower outer_lr \(0.001\), or set clip"
    )
    assert_refused(lambda: pretrain(tiny(patterns), tmp_path / "a"), words)
    assert not (tmp_path / "a" / "nonfinite").exists(), "there are no tasks to write"
