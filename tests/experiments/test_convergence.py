"""`metamirror convergence`: numbers against adaptation by hand, and what may be compared."""

from __future__ import annotations

import csv
import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

import metamirror as mm
from metamirror.cli.main import main
from metamirror.core.metrics import METRICS
from metamirror.experiments.convergence import Curve, Measured, convergence, describe, group
from metamirror.experiments.statistics import estimate
from metamirror.training.evaluate import evaluate_stream
from metamirror.training.train import train
from tests.runs import small

TASKS = 5
SETTINGS = small(shots=5, queries=4, steps=2, lr=0.05, iterations=6)


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Path]:
    """MAML with two seeds, gradnet with one, and MAML on other tasks."""
    out = tmp_path_factory.mktemp("runs")
    configs = {
        "maml-0": SETTINGS,
        "maml-1": replace(SETTINGS, seed=1),
        "gradnet": replace(SETTINGS, method="gradnet"),
        "more-shots": replace(SETTINGS, shots=6),
    }
    for name, config in configs.items():
        train(config, out / name)
    return {name: out / name for name in configs}


@pytest.fixture(scope="module")
def found(runs, tmp_path_factory):
    out = tmp_path_factory.mktemp("figure")
    names = [str(runs[name]) for name in ("maml-0", "maml-1", "gradnet")]
    assert main(["convergence", *names, "--tasks", str(TASKS), "--out", str(out)]) == 0
    return json.loads((out / "convergence.json").read_text()), out


def test_a_launcher_measures_the_same_and_trackers_get_it(runs, found, tmp_path: Path):
    names = [str(runs[name]) for name in ("maml-0", "maml-1", "gradnet")]
    words = ["convergence", *names, "--tasks", str(TASKS), "--out", str(tmp_path)]
    assert main([*words, "--launcher", "local:jobs=2", "--log", "csv"]) == 0
    assert json.loads((tmp_path / "convergence.json").read_text()) == found[0]
    with (tmp_path / "metrics.csv").open(newline="") as file:
        sent = {(int(r["step"]), r["name"]): float(r["value"]) for r in csv.DictReader(file)}
    for curve in found[0]["curves"]:
        for point in curve["points"]:
            assert sent[point["k"], f"{curve['label']}/support_loss"] == point["support_loss"]
    # What was measured is not measured again, unless the run has gone on.
    (measured, *_) = sorted((tmp_path / "records").glob("*.safetensors"))
    before = measured.stat().st_mtime_ns
    assert main([*words, "--launcher", "local"]) == 0
    assert measured.stat().st_mtime_ns == before


def by_hand(run: Path, task: int, steps: int) -> tuple[list[float], list[float], list[float]]:
    """Support losses, gradient norms and query errors at k = 0..steps."""
    learner = mm.load(run)
    stream = mm.tasks("sinusoid", "test", shots=5, queries=4, seed=0, batch=1)
    support, query = stream.task(task, 0)
    losses, norms, errors = [], [], []
    for k in range(steps + 1):
        adapted = learner.adapt(support, steps=k, seed=stream.seeds(task)[0])
        errors.append(float((adapted(query.x) - query.y).square().mean()))
        phi = {name: p.detach().requires_grad_() for name, p in adapted.params.items()}
        loss = (learner.predict(phi, support.x) - support.y).square().mean()
        grads = torch.autograd.grad(loss, list(phi.values()))
        losses.append(loss.item())
        norms.append(math.sqrt(sum(float(g.square().sum()) for g in grads)))
    return losses, norms, errors


def test_the_numbers_are_those_of_adapting_by_hand_also_beyond_the_trained_steps(runs, found):
    maml, gradnet = found[0]["curves"]
    assert [point["k"] for point in gradnet["points"]] == [0, 1, 2, 3, 4]  # twice K = 2
    for curve, names in ((maml, ["maml-0", "maml-1"]), (gradnet, ["gradnet"])):
        expected = torch.tensor(
            [[by_hand(runs[name], task, 4) for task in range(TASKS)] for name in names]
        )
        for i, measure in enumerate(("support_loss", "grad_norm", "mse")):
            means = [point[measure] for point in curve["points"]]
            assert means == pytest.approx(expected[:, :, i].mean((0, 1)).tolist(), rel=1e-4)
    losses = [by_hand(runs["gradnet"], task, 0)[0][0] for task in range(TASKS)]
    deviation = torch.tensor(losses).std().item()
    interval = gradnet["points"][0]["support_loss_ci95"]
    assert interval == pytest.approx(1.96 * deviation / TASKS**0.5, rel=1e-4)


def test_seeds_of_one_method_are_one_curve_whose_interval_knows_both(runs, found):
    assert [(c["label"], c["seeds"]) for c in found[0]["curves"]] == [
        ("maml", [0, 1]),
        ("gradnet", [0]),
    ]
    # The interval of a table of seeds and tasks, as in a comparison.
    losses = np.array(
        [
            [by_hand(runs[name], task, 0)[0][0] for task in range(TASKS)]
            for name in ("maml-0", "maml-1")
        ]
    )
    half = found[0]["curves"][0]["points"][0]["support_loss_ci95"]
    assert half == pytest.approx(estimate(losses).half, rel=1e-3)
    assert half > 1.96 * losses.mean(0).std(ddof=1) / TASKS**0.5


def test_curves_of_one_method_are_told_apart_by_what_differs(runs, tmp_path):
    train(replace(SETTINGS, lr=0.02), tmp_path / "slow")
    curves = group([runs["maml-0"], tmp_path / "slow", runs["gradnet"]])
    assert [curve.label for curve in curves] == ["maml", "maml lr=0.02", "gradnet"]


def test_the_observations_of_the_paper_are_checked_against_maml(runs, found):
    maml, gradnet = found[0]["curves"]
    assert found[0]["reference"] == "maml"
    start = {name: [by_hand(runs[name], t, 2) for t in range(TASKS)] for name in runs}
    mamls = [
        [(a + b) / 2 for a, b in zip(start["maml-0"][t][0], start["maml-1"][t][0], strict=True)]
        for t in range(TASKS)
    ]
    gap = [start["gradnet"][t][0][0] - mamls[t][0] for t in range(TASKS)]
    seen = gradnet["initial_loss"]
    assert seen["difference"] == pytest.approx(sum(gap) / TASKS, rel=1e-3, abs=1e-5)
    assert seen["low"] < seen["difference"] < seen["high"]
    decided = seen["high"] < 0 or seen["low"] > 0
    assert (seen["verdict"] in ("lower", "higher")) is decided
    ratio = gradnet["points"][0]["grad_norm"] / maml["points"][0]["grad_norm"]
    assert gradnet["initial_grad_norm"]["ratio"] == pytest.approx(ratio)
    target = gradnet["reference_loss"]
    assert (target["k"], target["loss"]) == (2, pytest.approx(maml["points"][2]["support_loss"]))
    reached = [p["k"] for p in gradnet["points"] if p["support_loss"] <= target["loss"]]
    assert target["reached_at"] == (reached[0] if reached else None)
    assert maml["reference_loss"]["reached_at"] <= 2


def test_two_seeds_that_scatter_say_little_of_the_start():
    """Seed means of 1.0 and 1.1, and of 0.85 and 0.95: with two of each that may be chance."""

    def measured(method: str, *means: float) -> Measured:
        losses = torch.tensor(means, dtype=torch.float64)[:, None, None].expand(-1, 50, 3)
        runs = {i: Path(f"{method}-{i}") for i in range(len(means))}
        curve = Curve(method, runs, replace(SETTINGS, method=method))
        return Measured(curve, losses, losses, losses)

    def verdict(*own: float, **reference: tuple[float, ...]) -> dict:
        both = [measured("maml", *reference["maml"]), measured("gradnet", *own)]
        return describe(both, {}, METRICS["mse"])["curves"][1]["initial_loss"]

    seen = verdict(0.85, 0.95, maml=(1.0, 1.1))
    # Two variances of 0.005 / 2 with a degree of freedom each: two degrees in all.
    half = stats.t.ppf(0.975, 2) * math.sqrt(0.005)
    assert (seen["low"], seen["high"]) == pytest.approx((-0.15 - half, -0.15 + half), rel=1e-4)
    assert seen["verdict"] == "not significant"
    assert verdict(0.1, 0.2, maml=(1.0, 1.1))["verdict"] == "lower"
    assert verdict(2.0, 2.1, maml=(1.0, 1.1))["verdict"] == "higher"


def test_a_run_that_is_not_finished_is_warned_of(runs, tmp_path, capsys):
    shutil.copytree(runs["maml-0"], tmp_path / "half")
    config = json.loads((tmp_path / "half" / "config.json").read_text())
    (tmp_path / "half" / "config.json").write_text(json.dumps(config | {"iterations": 900}))
    convergence([tmp_path / "half", runs["gradnet"]], tasks=2, steps=1)
    (said,) = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
    assert said.endswith("half is not finished: it stands at 6 of 900 iterations")


def test_the_files_hold_the_same_numbers(found):
    document, out = found
    assert (out / "convergence.png").read_bytes().startswith(b"\x89PNG")
    drawn = (out / "convergence.svg").read_text()
    assert "<svg" in drawn
    assert "gradnet" in drawn
    with (out / "convergence.csv").open() as file:
        rows = list(csv.DictReader(file))
    measures = ("support_loss", "grad_norm", "mse")
    columns = [name for m in measures for name in (m, f"{m}_ci95")]
    assert list(rows[0]) == ["curve", "method", "seeds", "tasks", "k", *columns]
    assert len(rows) == 2 * 5
    last = document["curves"][1]["points"][4]
    assert {name: float(rows[-1][name]) for name in columns} == {n: last[n] for n in columns}


def test_the_command_speaks_to_people_and_to_programs(runs, tmp_path, capsys):
    given = ["convergence", str(runs["maml-0"]), str(runs["gradnet"]), "--tasks", "3"]
    assert main([*given, "--steps", "3", "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "3 test tasks" in said
    assert "maml's support loss at k = 2" in said
    assert "0.5 to 2 counts as comparable" in said
    assert main([*given, "--split", "val", "--json", "--out", str(tmp_path)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["protocol"]["split"] == "val"
    assert document["missing"] == []


MISTAKES = {
    "other tasks": (("maml-0", "more-shots"), ("shots 6", "cannot be compared")),
    "one run twice": (("maml-0", "maml-0"), ("same settings and seed",)),
    "one task": (("maml-0", "--tasks", "1"), ("tasks is 1", "at least 2")),
    "a negative last step": (("maml-0", "--steps", "-1"), ("steps is -1",)),
    "no such run": (("nowhere",), ("no run folder",)),
    "no run": ((), ("no run is given",)),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_what_cannot_be_compared_is_refused(mistake, runs, tmp_path, capsys):
    given, words = MISTAKES[mistake]
    paths = [str(runs.get(word, word)) for word in given]
    assert main(["convergence", *paths, "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert all(word in said.err for word in words), said.err
    assert not (tmp_path / "out").exists()


def test_an_interruption_leaves_the_curves_that_are_finished(runs, tmp_path, capsys, monkeypatch):
    evaluated = []

    def interrupted(*args, **kwargs):
        if evaluated:
            raise KeyboardInterrupt
        evaluated.append(evaluate_stream(*args, **kwargs))
        return evaluated[0]

    monkeypatch.setattr("metamirror.experiments.inner_paths.evaluate_stream", interrupted)
    words = ["convergence", str(runs["maml-0"]), str(runs["gradnet"]), "--tasks", "3"]
    assert main([*words, "--out", str(tmp_path)]) == 130
    assert capsys.readouterr().err.endswith("metamirror: interrupted\n")
    document = json.loads((tmp_path / "convergence.json").read_text())
    assert [curve["label"] for curve in document["curves"]] == ["maml"]
    assert document["missing"] == ["gradnet"]
