"""A meta-loss or meta-gradient that is not finite."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import metamirror as mm
from metamirror.cli.main import main
from metamirror.core.learner import Learner, TaskLosses
from metamirror.core.tasks import Params
from metamirror.data import DATA_SETS
from metamirror.data.registry import DataSet
from metamirror.storage import checkpoint, tensor_file
from metamirror.training import divergence
from metamirror.training.divergence import NonFiniteError
from metamirror.training.factory import build_stream
from metamirror.training.train import train
from tests.runs import Pictures, small

STEP, INDEX = 7, 1


def spoilt(monkeypatch, what: str, steps: tuple[int, ...] = (STEP,)) -> None:
    """One task whose loss, or only its gradient, or a decomposition on its way, fails."""
    stream = build_stream(small(), "train")
    marks = [stream.task(step, INDEX).query.x for step in steps]
    real = Learner._together

    def together(self: Learner, tasks: mm.Task, noise: list[Params]) -> TaskLosses:
        found = real(self, tasks, noise)
        bad = torch.tensor([any(torch.equal(x, mark) for mark in marks) for x in tasks.query.x])
        if what == "meta-loss":
            return found._replace(loss=torch.where(bad, float("nan"), found.loss))
        if what == "decomposition":
            torch.linalg.cholesky(torch.eye(2) * (-1 if bad.any() else 1))
            return found
        # The square root of zero: its value is 0 and its slope infinite.
        root = torch.where(bad, found.loss - found.loss.detach(), 1).sqrt()
        return found._replace(loss=found.loss + torch.where(bad, root, 0))

    monkeypatch.setattr(Learner, "_together", together)


@pytest.mark.parametrize("what", ["meta-loss", "meta-gradient", "decomposition"])
def test_a_run_stops_and_names_the_task(what: str, tmp_path: Path, monkeypatch):
    spoilt(monkeypatch, what)
    kind = "meta-loss" if what == "decomposition" else what
    words = f"the {kind} of maml is not finite at step {STEP}, task {INDEX}: lower lr"
    with pytest.raises(NonFiniteError, match=words):
        train(small(), tmp_path)
    name = f"step-{STEP:08d}-task-{INDEX}"
    address = json.loads((tmp_path / "nonfinite" / f"{name}.json").read_text())
    assert address == {
        "data": "sinusoid",
        "split": "train",
        "seed": 0,
        "step": STEP,
        "index": INDEX,
        "method": "maml",
        "not_finite": kind,
    }
    tensors, facts = tensor_file.read(tmp_path / "nonfinite" / f"{name}.safetensors")
    support, query = build_stream(small(), "train").task(STEP, INDEX)
    assert facts == address
    for key, tensor in (("support.x", support.x), ("query.y", query.y)):
        assert torch.equal(tensors[key], tensor)


def test_the_learner_before_the_bad_step_is_kept(tmp_path: Path, monkeypatch):
    train(small(iterations=STEP, validate_every=0), tmp_path / "good")
    spoilt(monkeypatch, "meta-loss")
    with pytest.raises(NonFiniteError):
        train(small(validate_every=0), tmp_path / "bad")
    good, bad = (
        tensor_file.read(tmp_path / run / "last" / "learner.safetensors") for run in ("good", "bad")
    )
    assert bad[1] == {"step": STEP}
    assert all(torch.equal(good[0][name], bad[0][name]) for name in good[0])


def test_a_stopped_run_goes_on_if_told_to_skip(tmp_path: Path, monkeypatch, capsys):
    spoilt(monkeypatch, "meta-loss")
    with pytest.raises(NonFiniteError):
        train(small(), tmp_path / "stopped")
    train(small(on_nonfinite="skip"), tmp_path / "stopped", resume=True)
    train(small(on_nonfinite="skip"), tmp_path / "skipped")
    stopped, skipped = (
        (tmp_path / run / "metrics.jsonl").read_bytes() for run in ("stopped", "skipped")
    )
    assert stopped == skipped


def test_a_skipped_step_is_counted_and_changes_nothing(tmp_path: Path, monkeypatch, capsys):
    spoilt(monkeypatch, "meta-gradient", steps=(STEP, 9))
    train(small(on_nonfinite="skip"), tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["skipped"] for line in lines if "skipped" in line] == [0, 0, 1, 2]
    err = capsys.readouterr().err
    assert f"at step {STEP}, task {INDEX}" in err
    assert "the step is skipped" in err
    assert all(torch.isfinite(p).all() for p in mm.load(tmp_path, which="last").parameters())
    assert len(list((tmp_path / "nonfinite").glob("*.json"))) == 2


def test_a_run_that_only_skips_is_stopped(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(divergence, "SKIPS_IN_A_ROW", 4)
    with pytest.raises(NonFiniteError, match="at step 3"):
        train(small(on_nonfinite="skip", lr=1e30), tmp_path)
    assert len(list((tmp_path / "nonfinite").glob("*.json"))) > 3


def test_a_learner_that_is_not_finite_is_not_saved(tmp_path: Path):
    config = small(optimizer="sgd", momentum=0.0, outer_lr=3e38, iterations=3, checkpoint_every=1)
    with pytest.raises(NonFiniteError, match=r"maml itself is not finite|is not finite at step"):
        train(config, tmp_path)
    for file in checkpoint.files(tmp_path):
        tensors, _ = tensor_file.read(file)
        assert all(torch.isfinite(t).all() for n, t in tensors.items() if n.startswith("learner"))


@pytest.mark.parametrize("method", ["maml", "ecml", "gradnet"])
def test_the_command_ends_with_2(method: str, tmp_path: Path, capsys):
    words = ["--data", "sinusoid", "--iterations", "3", "--lr", "1e30", "--method", method]
    assert main(["train", *words, "--out", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert f"of {method} is not finite at step 0, task 0, 1, 2, 3" in err
    assert str(tmp_path / "nonfinite") in err


def test_what_is_not_finite_can_be_evaluated(tmp_path: Path, capsys):
    run = str(tmp_path / "run")
    words = "--data sinusoid --method maml --shots 5 --steps 1 --iterations 3 --val-tasks 2"
    assert main(["train", *words.split(), "--lr", "0.5", "--out", run]) == 0
    capsys.readouterr()
    assert main(["evaluate", run, "--tasks", "5", "--steps", "60", "--json"]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert found["mse"] is None
    assert found["by_step"][0]["mse"] > 0
    assert "of 5 tasks is not finite" in captured.err


def test_a_learner_that_fails_validation_is_never_the_best(tmp_path: Path):
    run = str(tmp_path / "run")
    words = "--data sinusoid --method maml --shots 5 --steps 60 --lr 0.5 --iterations 3"
    words += " --tasks-per-step 1 --validate-every 1 --val-tasks 20 --on-nonfinite skip"
    assert main(["train", *words.split(), "--out", run]) == 0
    lines = [json.loads(x) for x in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert any(line["val_loss"] is None for line in lines)
    assert not (tmp_path / "run" / "best").exists()


def test_a_model_that_answers_nothing_is_right_about_nothing():
    broken = torch.nn.Linear(3, 2)
    torch.nn.init.constant_(broken.weight, float("nan"))
    task = mm.Task(*(mm.Batch(torch.rand(4, 3), torch.tensor([0, 0, 1, 1])) for _ in range(2)))
    learner = mm.make_learner("maml", broken, steps=1)
    assert mm.evaluate(learner, iter([task, task]), n=2).mean == 0


# Finite, but absurd

EXPLODING = (
    *("train", "--data", "sinusoid", "--method", "maml", "--shots", "5", "--iterations", "4"),
    *("--log-every", "2", "--lr", "100", "--steps", "1", "--out"),
)


def test_a_run_that_has_diverged_is_not_done(tmp_path: Path, capsys):
    run = tmp_path / "run"
    assert main([*EXPLODING, str(run)]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("warning: maml has diverged: its meta-loss is ") == 1
    assert captured.err.splitlines()[-1].endswith(f"{run} is kept")
    assert "lower lr (100.0)" in captured.err
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["diverged"] for line in lines] == [True, True]
    assert checkpoint.step_of(checkpoint.files(run)[-1]) == 4
    # It stays so when asked again, and can be looked at.
    assert main(["train", "--resume", "--out", str(run)]) == 1
    assert main(["evaluate", str(run), "--tasks", "2"]) == 0


def test_a_run_that_is_told_to_skip_may_end_diverged(tmp_path: Path, capsys):
    assert main([*EXPLODING, str(tmp_path / "run"), "--on-nonfinite", "skip"]) == 0
    assert "has diverged" in capsys.readouterr().err


@pytest.mark.parametrize("data", ["sinusoid", "pictures"])
def test_an_untrained_run_has_not_diverged(data: str, tmp_path: Path, monkeypatch):
    monkeypatch.setitem(DATA_SETS, "pictures", DataSet("", "", stream=Pictures))
    train(small(data=data, width=4, outer_lr=0.0, iterations=1), tmp_path)
    assert '"diverged"' not in (tmp_path / "metrics.jsonl").read_text()


def test_a_checkpoint_from_before_the_last_loss_is_read(tmp_path: Path):
    train(small(iterations=3), tmp_path)
    for file in checkpoint.files(tmp_path):
        tensors, facts = tensor_file.read(file)
        del facts["last_loss"]
        file.write_bytes(tensor_file.pack(tensors, facts))
    train(small(iterations=5), tmp_path, resume=True)


def test_a_run_that_skipped_every_step_is_not_done(tmp_path: Path):
    with pytest.raises(ValueError, match=r"maml has learned nothing: .* of all 3 steps"):
        train(small(on_nonfinite="skip", lr=1e30, iterations=3), tmp_path)
