"""Run folders: damage, other runs, other versions, other processes, full disks."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import resource
import shutil
import signal
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

import metamirror as mm
from metamirror.cli.main import main
from metamirror.storage import checkpoint, learner_file, tensor_file
from metamirror.training.config import load_config
from metamirror.training.factory import resolved
from metamirror.training.logs import registry
from metamirror.training.train import train
from tests.refusals import assert_command_refused
from tests.runs import SMALL, forks, results, small


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "whole"
    train(SMALL, out)
    return out


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    return shutil.copytree(whole, tmp_path / "run")


def resumed(run: Path, *words: str) -> int:
    return main(["train", "--resume", "--out", str(run), *words])


def files(run: Path) -> dict[str, bytes]:
    return {str(p.relative_to(run)): p.read_bytes() for p in run.rglob("*") if p.is_file()}


# Continuing


def test_a_folder_moved_away_between_two_files_is_not_begun_anew(tmp_path: Path, monkeypatch):
    written = checkpoint.write

    def moved(run: Path, *rest) -> None:
        written(run, *rest)
        run.rename(tmp_path / "elsewhere")

    monkeypatch.setattr(checkpoint, "write", moved)
    with pytest.raises(FileNotFoundError):
        train(SMALL, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_folder_that_does_not_exist_starts_a_new_run(tmp_path: Path, whole: Path):
    config = str(whole / "config.json")
    assert resumed(tmp_path / "new", "--config", config) == 0
    assert results(tmp_path / "new") == results(whole)


def test_a_finished_run_says_so(run: Path, capsys):
    before = results(run)
    assert resumed(run) == 0
    assert "is finished: all 12 iterations are done" in capsys.readouterr().err
    assert results(run) == before


def test_a_run_folder_says_what_made_it(run: Path):
    assert load_config(run) == resolved(SMALL)
    made_with = json.loads((run / "versions.json").read_text())
    assert made_with["metamirror"] == mm.__version__
    assert {"python", "torch", "numpy", "threads", "ranks"} <= set(made_with)


def test_metrics_hold_no_time(run: Path):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [3, 4, 6, 8, 9, 12]
    assert set(lines[-1]) == {
        *("step", "loss", "mse", "outer_lr", "skipped", "val_mse", "val_ci95", "val_loss"),
    }
    timing = json.loads((run / "timing.jsonl").read_text().splitlines()[-1])
    assert set(timing) == {"step", "seconds", "steps_per_second"}


def test_a_run_that_is_not_continued_is_left_alone(run: Path, capsys):
    before = files(run)
    code = main(["train", "--config", str(run / "config.json"), "--out", str(run)])
    assert_command_refused(capsys, code, "not empty", "--resume")
    assert files(run) == before


# Damage


def damaged(file: Path, how: str) -> None:
    content = bytearray(file.read_bytes())
    if how == "a bit of a tensor":
        content[-3] ^= 1
    elif how == "a bit of the header":
        content[40] ^= 1
    elif how == "a figure of the facts":
        old = b'step\\": 12'
        assert old in content
        content[:] = content.replace(old, b'step\\": 11')
    elif how == "a shape":
        old = b'"shape":[8,8]'
        assert old in content
        content[:] = content.replace(old, b'"shape":[4,8]')
    else:
        del content[len(content) // 2 :]
        if how == "empty":
            content.clear()
    file.write_bytes(content)


DAMAGES = (
    *("a bit of a tensor", "a bit of the header", "a figure of the facts", "a shape"),
    *("cut short", "empty"),
)


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_checkpoint_is_passed_over(how: str, run: Path, whole: Path, capsys):
    newest = checkpoint.files(run)[-1]
    damaged(newest, how)
    assert resumed(run) == 0
    err = capsys.readouterr().err
    assert "warning" in err
    assert f"{newest.name} is damaged" in err
    assert results(run) == results(whole)


def test_a_run_without_an_intact_checkpoint_is_refused(run: Path, capsys):
    for file in checkpoint.files(run):
        damaged(file, "a bit of a tensor")
    before = {name: content for name, content in files(run).items() if "checkpoints" not in name}
    for _ in range(2):
        assert resumed(run) == 2
        err = capsys.readouterr().err
        assert "holds no intact checkpoint" in err
        assert err.splitlines()[-1].startswith("metamirror: ")
    after = files(run)
    assert {name: after[name] for name in before if "versions" not in name} == {
        name: content for name, content in before.items() if "versions" not in name
    }
    assert len([name for name in after if "damaged" in name]) == 2


def test_a_checkpoint_that_does_not_fit_is_refused(run: Path, capsys):
    """Intact by its checksum, but of a network of another width."""
    for file in checkpoint.files(run):
        tensors, facts = tensor_file.read(file)
        tensors["learner/model.head.weight"] = tensors["learner/model.head.weight"][:, :4]
        file.write_bytes(tensor_file.pack(tensors, facts))
    before = files(run)
    assert_command_refused(capsys, resumed(run), "model.head.weight has shape (1, 4)", "(1, 8)")
    assert {**files(run), "versions.json": b""} == {**before, "versions.json": b""}


ODD_CHECKPOINTS = {
    "a step in words": ({"step": "soon"}, {}, "step is 'soon'"),
    "a negative step": ({"step": -3}, {}, "step is -3"),
    "an endless sum": ({"losses": [1]}, {}, "losses is [1]"),
    "moments that are missing": ({}, {"optimizer/0/exp_avg": None}, "keeps ['exp_avg', "),
    "moments of nobody": ({}, {"optimizer/99/exp_avg": torch.zeros(1)}, "parameter 99"),
    "moments that count": ({}, {"optimizer/0/exp_avg": torch.int64}, "does not fit"),
    "a short random state": ({}, {"random/cpu": torch.zeros(3, dtype=torch.uint8)}, "random state"),
    "a best of another shape": ({}, {"best/model.head.bias": torch.zeros(7)}, "model.head.bias"),
}


@pytest.mark.parametrize("case", ODD_CHECKPOINTS)
def test_a_checkpoint_that_claims_the_impossible_is_refused(case: str, run: Path, capsys):
    """Intact by its checksum: whoever can write a file can write that, too."""
    said, changed, words = ODD_CHECKPOINTS[case]
    for file in checkpoint.files(run):
        tensors, facts = tensor_file.read(file)
        for name, value in changed.items():
            if value is None:
                del tensors[name]
            else:
                tensors[name] = tensors[name].to(value) if isinstance(value, torch.dtype) else value
        file.write_bytes(tensor_file.pack(tensors, facts | said))
    assert_command_refused(capsys, resumed(run), words)


def test_a_learner_whose_description_does_not_fit_is_refused(run: Path, capsys):
    file = run / "best" / "learner.json"
    description = json.loads(file.read_text())
    description["model"]["hidden"] = [4, 8]
    file.write_text(json.dumps(description))
    assert_command_refused(capsys, main(["evaluate", str(run), "--tasks", "2"]), "has shape")


def test_a_learner_with_a_flipped_bit_is_refused(run: Path, capsys):
    damaged(run / "best" / "learner.safetensors", "a bit of a tensor")
    assert_command_refused(
        capsys, main(["evaluate", str(run), "--tasks", "2"]), "damaged", "checksum"
    )


def test_metrics_beyond_the_checkpoint_are_cut_off(run: Path, whole: Path):
    checkpoint.files(run)[-1].unlink()
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 13, "lo')
    assert resumed(run) == 0
    assert results(run) == results(whole)


def test_what_a_killed_process_was_writing_is_removed(run: Path):
    for folder in (run, run / "checkpoints", run / "best"):
        (folder / ".learner.safetensors.123.tmp").write_text("half")
    assert resumed(run) == 0
    assert not list(run.rglob("*.tmp"))


def test_published_learners_are_restored_from_the_checkpoint(run: Path, whole: Path):
    shutil.rmtree(run / "best")
    (run / "last" / "learner.json").unlink()
    assert resumed(run) == 0
    assert results(run) == results(whole)


# Other runs and versions


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--method", "metasgd"), "method maml, not metasgd"),
        (("--outer-lr", "0.5"), "outer_lr 0.001, not 0.5"),
        (("--seed", "1"), "seed 0, not 1"),
        (("--iterations", "5"), "12 iterations, not 5, which can only grow"),
    ],
)
def test_another_run_is_not_continued(words, named: str, run: Path, capsys):
    before = files(run)
    assert_command_refused(capsys, resumed(run, *words), named)
    assert files(run) == before


def test_a_cosine_decides_how_long_a_run_is(tmp_path: Path, capsys):
    train(small(schedule="cosine", iterations=3), tmp_path)
    code = resumed(tmp_path, "--iterations", "6")
    assert_command_refused(capsys, code, "decides the cosine schedule")


def test_a_run_of_another_format_is_refused(run: Path, capsys):
    file = run / "versions.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"format": 9, "metamirror": "7.0"}))
    before = files(run)
    assert_command_refused(capsys, resumed(run), "format 9", "use metamirror 7.0")
    assert files(run) == before


def test_a_checkpoint_of_another_format_is_refused(run: Path, capsys):
    for file in checkpoint.files(run):
        tensors, facts = tensor_file.read(file)
        file.write_bytes(tensor_file.pack(tensors, {**facts, "format": 9}))
    assert_command_refused(capsys, resumed(run), "format 9")


def test_another_version_is_warned_of(run: Path, capsys):
    file = run / "versions.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"torch": "2.0"}))
    assert resumed(run) == 0
    assert "warning" in (err := capsys.readouterr().err)
    assert "torch 2.0" in err


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path, capsys):
    (tmp_path / "thesis.txt").write_text("mine")
    code = resumed(tmp_path, "--method", "maml", "--data", "sinusoid")
    assert_command_refused(capsys, code, "holds no run")
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]


# Other processes


def test_two_processes_do_not_share_a_folder(run: Path, capsys):
    words = ["train", "--resume", "--out", str(run), "--iterations", "100000"]
    first = forks().Process(target=main, args=(words,))
    first.start()
    deadline = time.monotonic() + 60
    while not (run / "owner.json").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    code = resumed(run, "--iterations", "100000")
    first.kill()
    first.join()
    assert_command_refused(capsys, code, "in use by process", str(first.pid), os.uname().nodename)
    # What was killed blocks nobody.
    iterations = max(checkpoint.step_of(file) for file in checkpoint.files(run)) + 3
    file = run / "config.json"
    file.write_text(json.dumps(asdict(load_config(run)) | {"iterations": iterations}))
    assert resumed(run) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_ends(number: int, tmp_path: Path, whole: Path):
    config = str(whole / "config.json")
    words = ["train", "--config", config, "--iterations", "100000", "--out", str(tmp_path / "run")]
    words += ["--checkpoint-every", "100000"]
    process = forks().Process(target=_exit_with, args=(words,))
    process.start()
    metrics, deadline = tmp_path / "run" / "metrics.jsonl", time.monotonic() + 60
    while not (metrics.exists() and metrics.read_bytes()) and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(process.pid, number)
    process.join(60)
    assert process.exitcode == 128 + number
    (newest,) = checkpoint.files(tmp_path / "run")[1:]
    step = checkpoint.step_of(newest)
    assert step > 0
    assert learner_file.step_of(tmp_path / "run", "last") == step
    last = json.loads(metrics.read_text().splitlines()[-1])["step"]
    assert step - 3 < last <= step


def _exit_with(words: list[str]) -> None:
    os._exit(main(words))


# Disks


def test_a_full_disk_loses_nothing(run: Path, whole: Path, capsys, monkeypatch):
    checkpoint.files(run)[-1].unlink()
    before = results(run)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    real = checkpoint.write_atomically

    def write(path: Path, content: bytes) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            real(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write_atomically", write)
        code = resumed(run)
    assert_command_refused(capsys, code, "No space left on device", "step-00000012")
    assert not list(run.rglob("*.tmp"))
    kept = {name: content for name, content in before.items() if name.startswith("checkpoints")}
    assert {name: (run / name).read_bytes() for name in kept} == kept
    assert resumed(run) == 0
    assert results(run) == results(whole)


def test_a_limit_on_files_is_met_like_a_full_disk(run: Path, whole: Path):
    """The system's own error, in a process of its own."""
    checkpoint.files(run)[-1].unlink()
    size = checkpoint.files(run)[-1].stat().st_size
    process = forks().Process(
        target=_limited, args=(["train", "--resume", "--out", str(run)], size)
    )
    process.start()
    process.join(60)
    assert process.exitcode == 2
    assert resumed(run) == 0
    assert results(run) == results(whole)


def _limited(words: list[str], size: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, size // 2))
    os._exit(main(words))


def test_a_folder_that_cannot_be_made_is_named(whole: Path, capsys):
    config = str(whole / "config.json")
    code = main(["train", "--config", config, "--out", "/proc/nothing/run"])
    assert_command_refused(capsys, code, "/proc/nothing")


def test_a_read_only_folder_is_named(whole: Path):
    """By a user who is not root, who may write everywhere."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        run = shutil.copytree(whole, Path(folder) / "run")
        for path in (run, *run.rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)
        words = ["train", "--resume", "--out", str(run), "--iterations", "20"]
        before = files(run)
        process = forks().Process(target=_as_nobody, args=(words, Path(folder).parent))
        process.start()
        process.join(60)
        assert process.exitcode == 2
        assert files(run) == before
        for path in (run, *run.rglob("*")):
            path.chmod(0o755)


def _as_nobody(words: list[str], where: Path) -> None:
    # An optimiser imports more of torch and Python, from folders that may be root's alone.
    torch.optim.Adam([torch.zeros(1, requires_grad=True)])
    os.chdir(where)
    if os.geteuid() == 0:
        os.setuid(65534)
    error = io.StringIO()
    with contextlib.redirect_stderr(error):
        code = main(words)
    named = "Permission denied" in error.getvalue() and error.getvalue().count("\n") == 1
    os._exit(code if named else 1)


def test_a_read_only_run_can_be_evaluated(run: Path, capsys, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(run))

    monkeypatch.setattr("metamirror.training.task_results.write_atomically", refuse)
    capsys.readouterr()
    assert main(["evaluate", str(run), "--tasks", "2", "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["tasks"] == 2
    assert "Read-only file system" in captured.err


# Trackers


def test_tensorboard_that_is_not_installed_is_named(
    tmp_path: Path, whole: Path, capsys, monkeypatch
):
    monkeypatch.setattr(registry, "is_installed", lambda name: False)
    config = str(whole / "config.json")
    out = tmp_path / "run"
    code = main(["train", "--config", config, "--out", str(out), "--log", "tensorboard"])
    assert_command_refused(capsys, code, "pip install 'metamirror[tensorboard]'")
    assert not out.exists()


# What a review found


@pytest.mark.parametrize("how", ["the files", "the folder"])
def test_a_run_whose_checkpoints_are_gone_is_not_started_over(how: str, run: Path, capsys):
    shutil.rmtree(run / "checkpoints")
    if how == "the files":
        (run / "checkpoints").mkdir()
    before = files(run)
    assert_command_refused(capsys, resumed(run, "--iterations", "20"), "no intact checkpoint")
    assert {**before, "launch.json": b""} == {**files(run), "launch.json": b""}


def test_every_bit_of_a_checkpoints_header_counts(run: Path, whole: Path, capsys):
    newest = max((run / "checkpoints").glob("*.safetensors"))
    content = newest.read_bytes()
    place = content.index(tensor_file.KEY.encode())
    newest.write_bytes(content[:place] + b"n" + content[place + 1 :])
    assert resumed(run) == 0
    assert "damaged" in capsys.readouterr().err
    assert results(run) == results(whole)


def test_what_a_run_was_started_with_stays_on_record(run: Path, capsys):
    facts = json.loads((run / "versions.json").read_text())
    (run / "versions.json").write_text(json.dumps(facts | {"torch": "1.0"}))
    for _ in range(2):
        assert resumed(run) == 0
        assert "torch 1.0" in capsys.readouterr().err
    assert json.loads((run / "versions.json").read_text())["torch"] == "1.0"


@pytest.mark.parametrize("content", ["[]", "3", "null"])
def test_odd_records_are_named(content: str, run: Path, capsys):
    (run / "versions.json").write_text(content)
    assert_command_refused(capsys, resumed(run), "versions.json")
    assert main(["evaluate", str(run), "--tasks", "2"]) == 2


@pytest.mark.parametrize("field", [{"frozen": 3}, {"options": []}, {"method": None}, {"model": 1}])
def test_odd_descriptions_of_a_learner_are_named(field: dict, run: Path, capsys):
    for file in run.glob("*/learner.json"):
        file.write_text(json.dumps(json.loads(file.read_text()) | field))
    assert main(["evaluate", str(run), "--tasks", "2"]) == 2
    assert "learner.json is damaged" in capsys.readouterr().err


def test_a_restart_by_another_torchrun_continues_nothing(run: Path, capsys, monkeypatch):
    """torchrun starts a refused process again: the second attempt must be refused as well."""
    before = files(run)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "mine")
    words = ["--data", "sinusoid", "--iterations", "20", "--out", str(run)]
    assert main(["train", "--method", "maml", *words]) == 2
    assert "not empty" in capsys.readouterr().err
    assert files(run) == before
