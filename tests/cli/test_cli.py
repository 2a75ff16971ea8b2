"""The command line: what it prints, where, and how it ends."""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import metamirror as mm
from metamirror.cli.main import COMMANDS, main
from metamirror.methods import takes_real_targets
from tests.refusals import assert_command_refused

ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": str(Path(mm.__file__).parents[1]),
    "OMP_NUM_THREADS": "1",
}


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "metamirror", *words]


def train(out: Path, *words: str, method: str = "maml") -> int:
    small = ("--iterations", "20", "--tasks-per-step", "2", "--steps", "2", "--shots", "5")
    return main(
        ["train", "--data", "sinusoid", "--method", method, *small, "--out", str(out), *words]
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    assert train(folder, "--seed", "3") == 0
    return folder


# Commands


def test_help_lists_the_commands(capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"  {name} " in out for name in COMMANDS)
    assert main(["data", "--help"]) == 0
    assert "data show" in (out := capsys.readouterr().out)
    assert "train" not in out


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str, capsys):
    with pytest.raises(SystemExit) as stop:
        main([*name.split(), "--help"])
    assert not stop.value.code
    assert f"usage: metamirror {name}" in capsys.readouterr().out


def test_help_imports_no_command_and_not_torch():
    code = "import sys; from metamirror.cli.main import main; main(['--help']); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=ENVIRONMENT
    )
    loaded = set(done.stdout.splitlines()[-1].split())
    rooms = ("experiments", "report", "playground", "training", "core")
    assert not {"torch", "numpy", "tyro", *(f"metamirror.{room}" for room in rooms)} & loaded


# methods

EXTRA_PARAMETERS = {
    "maml": 0,
    "metasgd": 121_093,
    "mtnet": 16_670,
    "warpgrad": 147_712,
    "metacurvature": 2_589_803,
    "metakfo": 2_621_836,
    "ecml": 0,
    "blockiaf": 3_326_442,
    "mamlpp": 2_098,
    "metalstm": 2_046,
    "anil": 0,
}


def test_methods_are_one_json_document(capsys):
    assert main(["methods", "--json"]) == 0
    captured = capsys.readouterr()
    rows = json.loads(captured.out)
    assert captured.err == ""
    assert [row["method"] for row in rows] == list(mm.METHODS)
    found = {row["method"]: row["extra_parameters"] for row in rows}
    assert {key: found[key] for key in EXTRA_PARAMETERS} == EXTRA_PARAMETERS
    assert all(row[field] for row in rows for field in ("title", "optimizer", "geometry", "paper"))
    assert {row["method"]: row["options"] for row in rows}["metasgd"] == ["positive"]


def test_methods_are_a_table_for_people():
    done = subprocess.run(command("methods"), capture_output=True, text=True, env=ENVIRONMENT)
    assert (done.returncode, done.stderr) == (0, "")
    for key, extra in EXTRA_PARAMETERS.items():
        assert key in done.stdout
        assert f"{extra:,}" in done.stdout


def test_the_table_of_methods_breaks_no_word_at_80_columns():
    done = subprocess.run(
        command("methods"), capture_output=True, text=True, env={**ENVIRONMENT, "COLUMNS": "80"}
    )
    table = done.stdout.partition("Options,")[0]
    assert max(map(len, table.splitlines())) <= 80
    shown = set(table.split())
    for method in mm.METHODS.values():
        assert {method.key, *method.optimizer.split(), *method.geometry.split()} <= shown


def test_the_version_is_one_line(capsys):
    assert main(["--version"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert captured.out == (
        f"metamirror {mm.__version__} "
        f"(Python {platform.python_version()}, torch {torch.__version__})\n"
    )


# train and evaluate


def test_training_leaves_a_run_folder(run: Path):
    config = json.loads((run / "config.json").read_text())
    assert (config["method"], config["iterations"], config["seed"]) == ("maml", 20, 3)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["step"] == 20
    learner = mm.load(run)
    assert (learner.steps, learner.lr) == (2, 0.01)


def test_training_says_what_comes_next(tmp_path: Path, capsys):
    assert train(tmp_path / "run") == 0
    captured = capsys.readouterr()
    assert (
        captured.out == f"done: {tmp_path / 'run'}; next: metamirror evaluate {tmp_path / 'run'}\n"
    )
    assert "20/20" in captured.err


def test_the_seed_decides_a_run(run: Path, tmp_path: Path):
    def parameters(folder: Path) -> bytes:
        return (folder / "last" / "learner.safetensors").read_bytes()

    train(tmp_path / "same", "--seed", "3")
    train(tmp_path / "other", "--seed", "4")
    assert parameters(tmp_path / "same") == parameters(run)
    assert parameters(tmp_path / "other") != parameters(run)


def test_training_lowers_the_loss(tmp_path: Path, capsys):
    def mse(iterations: int) -> float:
        folder = tmp_path / str(iterations)
        train(folder, "--iterations", str(iterations), "--tasks-per-step", "25", method="metasgd")
        capsys.readouterr()
        main(["evaluate", str(folder), "--tasks", "50", "--json"])
        return json.loads(capsys.readouterr().out)["mse"]

    assert mse(60) < mse(1)


def evaluated(capsys, *words: str) -> dict:
    capsys.readouterr()
    assert main(["evaluate", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_evaluation_is_one_json_document(run: Path, capsys):
    found = evaluated(capsys, str(run), "--tasks", "10")
    measured = {"mse", "ci95", "loss"}
    expected = {
        "method": "maml",
        "data": "sinusoid",
        "split": "test",
        "shots": 5,
        "queries": 15,
        "steps": 2,
        "norm": "transductive",
        "tasks": 10,
        "seed": 3,
        "step": 20,
    }
    assert {name: found.get(name) for name in expected} == expected
    assert measured <= set(found)
    assert found["mse"] == found["loss"] > 0


def test_evaluation_is_the_mean_over_its_tasks(run: Path, capsys):
    found = evaluated(capsys, str(run), "--tasks", "8", "--split", "val", "--steps", "4")
    learner = mm.load(run)
    stream = mm.tasks("sinusoid", "val", shots=5, queries=15, seed=0, batch=1)  # for every run
    losses = []
    for step in range(8):
        support, query = stream.task(step, 0)
        output = learner.adapt(support, steps=4)(query.x)
        losses.append(float((output - query.y).square().mean()))
    mean = sum(losses) / 8
    deviation = (sum((loss - mean) ** 2 for loss in losses) / 7) ** 0.5
    assert (found["split"], found["steps"]) == ("val", 4)
    assert found["mse"] == pytest.approx(mean, rel=1e-5)
    assert found["ci95"] == pytest.approx(1.96 * deviation / 8**0.5, rel=1e-5)


def test_evaluation_for_people_is_one_line(run: Path, capsys):
    capsys.readouterr()
    assert main(["evaluate", str(run), "--tasks", "5"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("maml on sinusoid, 5-shot, 2 steps, 5 test tasks, transductive: mse ")
    assert out.count("\n") == 1


@pytest.mark.parametrize("method", mm.METHODS)
def test_every_method_trains_and_evaluates(method: str, tmp_path: Path, capsys):
    words = ["--iterations", "2"]
    if not takes_real_targets(method):
        words += ["--data", "glyphs", "--width", "4", "--image-size", "16", "--val-tasks", "2"]
    assert train(tmp_path / "run", *words, method=method) == 0
    found = evaluated(capsys, str(tmp_path / "run"), "--tasks", "2")
    assert found["method"] == method


def test_options_follow_the_method(tmp_path: Path, capsys):
    spec = "metasgd:positive=true"
    assert train(tmp_path / "run", "--prior", "isotropic:0.1", "--first-order", method=spec) == 0
    learner = mm.load(tmp_path / "run")
    assert learner.geometry.positive
    assert learner.settings.adjoint.name == "first"
    assert learner.prior.lam == 0.1
    assert evaluated(capsys, str(tmp_path / "run"), "--tasks", "2")["method"] == spec


# Mistakes


BAD_SETTINGS = {
    "no such method": (("--method", "mamml"), ("'mamml'", "blockiaf")),
    "no such option": (("--method", "maml:order=1"), ("'order'",)),
    "a bad option": (("--method", "ecml:gamma=much"), ("gamma", "'much'")),
    "no such data set": (("--data", "cosine"), ("'cosine'", "sinusoid")),
    "no shots": (("--shots", "0"), ("shots is 0",)),
    "no tasks": (("--tasks-per-step", "0"), ("is 0",)),
    "negative steps": (("--steps", "-1"), ("steps is -1",)),
    "a negative step size": (("--lr", "-1"), ("lr is -1",)),
    "a step size of nan": (("--lr", "nan"), ("lr is nan",)),
    "a negative outer step size": (("--outer-lr", "-1"), ("-1",)),
    "no iterations": (("--iterations", "0"), ("iterations is 0",)),
    "a negative seed": (("--seed", "-1"), ("seed is -1",)),
    "a bad prior": (("--prior", "heavy"), ("'heavy'", "isotropic:WEIGHT")),
}


@pytest.mark.parametrize("mistake", BAD_SETTINGS)
def test_a_bad_setting_is_named_and_leaves_no_folder(mistake: str, tmp_path: Path, capsys):
    given, words = BAD_SETTINGS[mistake]
    assert_command_refused(capsys, train(tmp_path / "run", *given), *words)
    assert not (tmp_path / "run").exists()


def test_a_run_that_diverges_is_named(tmp_path: Path, capsys):
    assert_command_refused(capsys, train(tmp_path / "run", "--lr", "1e30"), "meta-loss", "lower lr")


def test_a_folder_in_use_is_left_alone(tmp_path: Path, capsys):
    (tmp_path / "thesis.txt").write_text("mine")
    assert_command_refused(capsys, train(tmp_path), str(tmp_path), "not empty")
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_file_is_no_folder(tmp_path: Path, capsys):
    (tmp_path / "run").write_text("mine")
    assert_command_refused(capsys, train(tmp_path / "run"), str(tmp_path / "run"))


def test_an_empty_folder_may_be_used(tmp_path: Path):
    assert train(tmp_path) == 0


BAD_EVALUATIONS = {
    "no such split": (("--split", "dev"), ("'dev'", "test")),
    "one task": (("--tasks", "1"), ("tasks is 1", "at least 2")),
    "negative steps": (("--steps", "-1"), ("steps is -1",)),
}


@pytest.mark.parametrize("mistake", BAD_EVALUATIONS)
def test_a_bad_evaluation_is_named(mistake: str, run: Path, capsys):
    given, words = BAD_EVALUATIONS[mistake]
    capsys.readouterr()
    assert_command_refused(capsys, main(["evaluate", str(run), "--json", *given]), *words)


def test_a_missing_run_is_named(tmp_path: Path, capsys):
    missing = str(tmp_path / "nowhere")
    assert_command_refused(capsys, main(["evaluate", missing]), missing, "no run folder")


def test_a_folder_without_a_run_is_named(tmp_path: Path, capsys):
    assert_command_refused(capsys, main(["evaluate", str(tmp_path)]), "holds no learner")


DAMAGES = {
    "cut short": ('{"method": "maml", ', "not valid JSON"),
    "empty": ("", "not valid JSON"),
    "a list": ("[1, 2]", "list, not a configuration"),
    "a word for a number": ('{"method": "maml", "shots": "ten"}', "shots is 'ten'"),
    "a field of the future": ('{"method": "maml", "quantum": true}', "quantum"),
    "no method": ('{"shots": 5}', "method"),
    "no such data set": ('{"method": "maml", "data": "cosine"}', "'cosine'"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_config_is_named(damage: str, run: Path, tmp_path: Path, capsys):
    text, words = DAMAGES[damage]
    damaged = shutil.copytree(run, tmp_path / "run")
    (damaged / "config.json").write_text(text)
    capsys.readouterr()
    assert_command_refused(capsys, main(["evaluate", str(damaged)]), words)


UNREADABLE = {
    "no such command": (("fly",), "fly"),
    "no such flag": (("train", "--method", "maml", "--wings", "2"), "--wings"),
    "not a number": (("train", "--method", "maml", "--shots", "ten"), "'ten'"),
    "half a shot": (("train", "--method", "maml", "--shots", "1.5"), "'1.5'"),
    "no method": (("train",), "--method"),
    "no such norm": (("train", "--method", "maml", "--norm", "batch"), "batch"),
    "no run": (("evaluate",), "the run folder"),
}


@pytest.mark.parametrize("mistake", UNREADABLE)
def test_what_cannot_be_read_is_named_in_a_line(mistake: str, capsys):
    words, named = UNREADABLE[mistake]
    assert_command_refused(capsys, main(words), named)


@pytest.mark.slow
def test_an_interrupted_run_ends_with_130_and_leaves_what_it_finished(tmp_path: Path):
    words = ("train", "--data", "sinusoid", "--method", "maml", "--vectorize", "False")
    process = subprocess.Popen(
        command(*words, "--out", str(tmp_path / "run")),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    metrics = tmp_path / "run" / "metrics.jsonl"
    deadline = time.monotonic() + 60
    while not (metrics.exists() and metrics.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == ""
    assert err.endswith("metamirror: interrupted\n")
    assert "Traceback" not in err
    assert json.loads(metrics.read_text().splitlines()[0])["step"] == 100


def test_an_output_that_knows_ascii_alone_gets_the_rest_escaped():
    code = "from metamirror.cli import main as cli; cli.main = lambda: print('1 ± 2'); cli.entry()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONIOENCODING": "ascii", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "1 \\xb1 2\n"), done.stderr
