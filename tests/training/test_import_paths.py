"""Models, losses, metrics and data of the user's own, by their import path."""

import json
from pathlib import Path

import pytest

import metamirror as mm
from metamirror.cli.main import main
from metamirror.core import import_path

SOURCE = """
import numpy as np
import torch
from torch import nn

import metamirror as mm


class Net(nn.Sequential):
    def __init__(self, inputs, outputs, width=8):
        super().__init__(nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, outputs))


def huber(output, y):
    return nn.functional.huber_loss(output, y)


def nearly(output, y):
    return ((output - y).abs() < 1).double().mean()


def largest(output, y):
    return (output - y).abs().max()


worst = mm.Metric("worst", largest, higher=False)


def blobs(seed=0):
    rng = np.random.default_rng(0)
    return rng.normal(size=(60, 3)) + np.repeat(np.arange(12), 5)[:, None], np.repeat(range(12), 5)


class Lines:
    def __init__(self, seed, shots):
        self.seed, self.shots = seed, shots

    def task(self, step, index):
        rng = np.random.default_rng([self.seed, step, index])
        slope = rng.normal()

        def batch(n):
            x = rng.normal(size=(n, 1)).astype("float32")
            return x, (slope * x).astype("float32")

        return batch(self.shots), batch(8)
"""
SMALL = ["--iterations", "6", "--validate-every", "3", "--val-tasks", "4", "--steps", "1"]


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of the user's own in the current folder, by a name that is new every time."""
    name = f"mine_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def run(*words: str) -> int:
    return main(list(words))


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """As another process would begin: nothing is allowed yet."""
    monkeypatch.setattr(import_path, "_ALLOWED", set())


def lines(mine: str) -> list[str]:
    return [
        *("--data", f"{mine}:Lines", "--shots", "4", "--model", f"{mine}:Net:width=5"),
        *("--loss", f"{mine}:huber", "--metric", f"{mine}:worst"),
    ]


def test_a_run_of_ones_own_model_data_loss_and_metric(
    mine: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    assert run("train", "--method", "metasgd", *lines(mine), *SMALL, "--out", "run") == 0
    said = capsys.readouterr().out
    config = json.loads(Path("run/config.json").read_text())
    assert config["imports"] == [mine]
    last = json.loads(Path("run/metrics.jsonl").read_text().splitlines()[-1])
    assert {"loss", "worst", "val_worst", "val_loss"} <= set(last)
    learner = mm.load("run")
    assert type(learner.model).__name__ == "Net"
    assert learner.model[0].out_features == 5
    assert learner.settings.metric.name == "worst"
    # Going on with the same words, as another process.
    forget(monkeypatch)
    assert (
        run("train", "--method", "metasgd", *lines(mine), *SMALL, "--out", "run", "--resume") == 0
    )
    forget(monkeypatch)
    capsys.readouterr()
    assert run("evaluate", "run", "--tasks", "4", "--json") == 2
    assert f"add --import {mine}" in capsys.readouterr().err
    assert "next: metamirror evaluate run --import " in said
    assert run("evaluate", "run", "--tasks", "4", "--json", "--import", mine) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["metric"] == "worst"
    assert found["higher"] is False
    assert found["worst"] > 0


def test_worker_processes_know_a_loss_of_ones_own(mine: str):
    words = ["--method", "maml", *lines(mine), *SMALL, "--processes", "2", "--out", "run"]
    assert run("train", *words) == 0


def test_a_comparison_and_its_report_carry_the_metric(
    mine: str, capsys: pytest.CaptureFixture[str]
):
    words = ["--methods", "maml,metasgd", "--seeds", "1", "--test-tasks", "4", "--no-controls"]
    assert run("compare", *lines(mine), *SMALL, *words, "--out", "table") == 0
    table = json.loads(Path("table/table.json").read_text())
    assert table["protocol"]["metric"] == {"metric": "worst", "higher": False, "percent": False}
    rows = {row["method"]: row for row in table["rows"]}
    best = min(rows, key=lambda name: rows[name]["worst"])
    assert rows[best]["bold"]
    assert "worst" in Path("table/table.md").read_text()
    page = Path("table/report.html").read_text()
    assert "worst; left is better" in page
    assert "validation worst" in page


def test_arrays_that_a_function_returns_are_classes_to_draw_from(mine: str):
    words = ["--data", f"{mine}:blobs", "--ways", "2", "--queries", "2", "--metric", "f1"]
    assert run("train", "--method", "maml", *words, *SMALL, "--out", "run") == 0
    last = json.loads(Path("run/metrics.jsonl").read_text().splitlines()[-1])
    assert 0 <= last["val_f1"] <= 100


def test_a_file_names_code_but_does_not_have_it_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    Path("trap.py").write_text("open('sprung', 'w')")
    for spec in ("trap:build", "os:system:command=touch sprung", "subprocess:run"):
        Path("config.json").write_text(
            json.dumps({"method": "maml", "data": "sinusoid", "model": spec})
        )
        assert run("train", "--config", "config.json", "--out", "run", *SMALL) == 2
        assert "--import" in capsys.readouterr().err
    assert not Path("sprung").exists()
    assert not Path("run").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model", "{mine}:nothing"], "has no 'nothing'"),
        (["--model", "{mine}:huber"], "wants 'output'"),
        (["--model", "{mine}:Net:depth=3"], "takes no 'depth'; it takes inputs, outputs, width"),
        (["--loss", "nowhere:at_all"], "there is no module 'nowhere'"),
        (["--loss", "hinge"], "choose from cross_entropy, mse"),
        (["--model", "lenet"], "or name your own"),
        (["--data", "mnist"], "or name your own"),
    ],
)
def test_a_wrong_name_ends_with_what_to_do(
    mine: str, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
):
    given = [word.replace("{mine}", mine) for word in words]
    data = [] if "--data" in given else ["--data", "sinusoid"]
    assert run("train", "--method", "maml", *data, *given, *SMALL, "--out", "run") == 2
    assert message in capsys.readouterr().err


def test_a_plugin_of_an_installed_package_is_imported_by_every_command(
    mine: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    site = Path("site")
    (site / "plug-1.0.dist-info").mkdir(parents=True)
    (site / "plug-1.0.dist-info" / "METADATA").write_text("Name: plug\nVersion: 1.0\n")
    points = f"[metamirror]\nmine = {mine}\nbroken = not_there_at_all\n"
    (site / "plug-1.0.dist-info" / "entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(str(site.resolve()))
    forget(monkeypatch)
    assert run("methods", "--json") == 0
    assert mine in import_path._ALLOWED
    assert "the plugin broken is left out" in capsys.readouterr().err


def test_a_saved_learner_is_evaluated_on_the_data_that_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    learner = mm.make_learner("maml", mm.models.MLP(1, 1), steps=2)
    mm.save(learner, tmp_path / "learner")
    assert run("evaluate", str(tmp_path / "learner"), "--tasks", "4") == 2
    assert "add --data" in capsys.readouterr().err
    words = ["--data", "sinusoid", "--shots", "5", "--tasks", "4", "--json", "--metric", "r2"]
    assert run("evaluate", str(tmp_path / "learner"), *words) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["steps"] == 2
    assert found["step"] is None
    kept = {file.stem for file in (tmp_path / "learner" / "evaluations").glob("*.json")}
    assert {name.partition("queries-")[2] for name in kept} == {"data-sinusoid-shots-5-metric-r2"}
    learner.configure(metric="r2")
    again = mm.evaluate(learner, mm.tasks("sinusoid", "test", shots=5, batch=1), n=4)
    assert found["r2"] == pytest.approx(again.mean)
