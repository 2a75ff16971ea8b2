"""`metamirror compare`: what its table says, and what it survives."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import metamirror as mm
import study
from metamirror.cli.main import main
from metamirror.core.files import read_json
from metamirror.experiments.comparison.jobs import Job, read_record
from metamirror.experiments.statistics import estimate
from studies import Study
from tests.refusals import assert_command_refused
from tests.runs import forks

GRID = (
    *("compare", "--data", "sinusoid", "--methods", "maml,metasgd", "--no-controls"),
    *("--seeds", "2"),
    *("--shots", "3", "--queries", "3", "--steps", "2", "--width", "8", "--tasks-per-step", "2"),
    *("--iterations", "60", "--checkpoint-every", "20", "--log-every", "4"),
    *("--validate-every", "30", "--val-tasks", "3", "--test-tasks", "6"),
    # The first use of vmap imports half of torch.
    "--vectorize",
    "False",
)
ENDLESS = (*GRID, "--methods", "maml", "--seeds", "1", "--iterations", "1000000")
ENDLESS = (*ENDLESS, "--checkpoint-every", "1000000", "--validate-every", "0")
"""Only what is asked to save leaves a checkpoint."""
TIMES = ("seconds_per_iteration", "relative_to_maml")


def table_of(out: Path, *, times: bool = True) -> dict[str, Any]:
    found = json.loads((out / "table.json").read_text())
    if not times:
        for row in found["rows"]:
            for name in TIMES:
                del row[name]
    return found


def rows_of(out: Path) -> dict[str, dict[str, Any]]:
    return {row["method"]: row for row in table_of(out)["rows"]}


def tasks_of(out: Path, name: str, key: str = "loss") -> np.ndarray:
    (file,) = (out / "cells" / name / "evaluations").glob("test-*.jsonl")
    return np.array([json.loads(line)[key][-1] for line in file.read_text().splitlines()])


def times_of(out: Path) -> dict[str, int]:
    return {str(f): f.stat().st_mtime_ns for f in (out / "cells").rglob("*") if f.is_file()}


def wait_for(condition, seconds: float = 200) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def lines_in(out: Path, name: str) -> int:
    """How many lines of metrics a cell has."""
    file = out / "cells" / name / "metrics.jsonl"
    return len(file.read_text().splitlines()) if file.exists() else 0


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def worker_at(out: Path, name: str) -> int:
    """The process that trains a cell, once it has begun to learn."""
    folder = out / "cells" / name
    wait_for(lambda: (folder / "owner.json").exists())
    pid = json.loads((folder / "owner.json").read_text())["pid"]
    wait_for(lambda: lines_in(out, name) > 0)
    return pid


def begun(*words: str, log: Path | None = None):
    process = forks().Process(target=life, args=(words, log))
    process.start()
    return process


def life(words: tuple[str, ...], log: Path | None = None) -> None:
    if log is not None:
        # Not by pytest: a fork server that another test has started writes where it did then.
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT), 2)
    code = main(words)
    os._exit(code)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("compare") / "whole"
    assert main([*GRID, "--out", str(out)]) == 0
    return out


def test_the_table_is_what_the_tasks_say(whole: Path):
    rows = rows_of(whole)
    assert list(rows) == ["maml", "metasgd"]
    tasks = {m: np.stack([tasks_of(whole, f"{m}-3shot-seed{s}") for s in (0, 1)]) for m in rows}
    for method, row in rows.items():
        found = estimate(tasks[method])
        assert (row["mse"], row["ci95"]) == pytest.approx((found.mean, found.half), rel=1e-12)
        assert [s["mse"] for s in row["seeds"]] == pytest.approx(list(tasks[method].mean(1)))
        assert [s["run"] for s in row["seeds"]] == [
            f"cells/{method}-3shot-seed{seed}" for seed in (0, 1)
        ]
        assert (row["status"], row["group"], row["published"]) == ("done", "paper", None)
    found = estimate(tasks["metasgd"] - tasks["maml"])
    shown = rows["metasgd"]["difference_to_maml"]
    assert (shown["mean"], shown["low"], shown["high"]) == pytest.approx(
        (found.mean, found.low, found.high), rel=1e-9
    )
    assert rows["maml"]["difference_to_maml"] is None
    assert rows["maml"]["relative_to_maml"] == 1
    assert rows["metasgd"]["seconds_per_iteration"] > 0
    learner = mm.load(whole / "cells" / "metasgd-3shot-seed0")
    own, start = (sum(p.numel() for p in m.parameters()) for m in (learner, learner.model))
    assert rows["metasgd"]["extra_parameters"] == own - start


def test_cells_are_ordinary_runs(whole: Path, capsys):
    run = whole / "cells" / "maml-3shot-seed1"
    assert main(["evaluate", str(run), "--tasks", "6", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["mse"] == rows_of(whole)["maml"]["seeds"][1]["mse"]


def test_the_protocol_says_what_decides_the_numbers(whole: Path):
    line = table_of(whole)["protocol"]["line"]
    for words in (
        *("sinusoid", "3-shot", "3 queries", "mlp of width [8, 8]", "2 inner steps"),
        *("inner step size 0.01", "60 iterations of 2 tasks", "Adam, outer learning rate 0.001"),
        *("transductive normalisation", "validations on 3 tasks every 30", "6 test tasks"),
        "seeds: 2",
    ):
        assert words in line
    for name in ("table.md", "table.tex"):
        assert line in (whole / name).read_text()
    assert (whole / "table.csv").read_text().count("\n") == 3
    assert (whole / "report.html").is_file()


def test_what_is_finished_is_left_alone(whole: Path, capsys):
    before, table = times_of(whole), table_of(whole)
    assert main([*GRID, "--out", str(whole), "--json"]) == 0
    assert times_of(whole) == before
    assert json.loads(capsys.readouterr().out) == table_of(whole) == table


@pytest.mark.slow
def test_killed_and_started_again_it_ends_with_the_same_table(whole: Path, tmp_path: Path):
    out = tmp_path / "killed"
    process = begun(*GRID, "--out", str(out))
    worker = worker_at(out, "metasgd-3shot-seed0")
    process.kill()
    process.join()
    wait_for(lambda: not alive(worker), 20)
    assert not (out / "table.json").exists()
    done = [f.name for f in (out / "records").glob("*.json")]
    assert "maml-3shot-seed0.json" in done
    assert len(done) < 4
    assert main([*GRID, "--out", str(out)]) == 0
    assert table_of(out, times=False) == table_of(whole, times=False)


@pytest.mark.slow
def test_interrupted_it_saves_and_goes_on(whole: Path, tmp_path: Path):
    out = tmp_path / "interrupted"
    process = begun(*GRID, "--out", str(out), "--jobs", "2")
    worker = worker_at(out, "metasgd-3shot-seed0")
    os.kill(process.pid, signal.SIGINT)
    process.join(60)
    assert process.exitcode == 130
    assert not alive(worker)
    assert "missing" in {row["status"] for row in table_of(out)["rows"]}
    assert not list((out / "cells").glob("*/owner.json"))
    assert main([*GRID, "--out", str(out), "--jobs", "2"]) == 0
    assert table_of(out, times=False) == table_of(whole, times=False)


def test_a_cell_that_fails_leaves_the_rest_and_is_tried_again(whole: Path, tmp_path: Path, capsys):
    """One diverges; the process of another is killed, and its run continues in a new one."""
    words = (*GRID, "--seeds", "1,maml=2", "--lr", "0.01,metasgd=1e38", "--out", str(tmp_path))
    process = begun(*words)
    os.kill(worker_at(tmp_path, "maml-3shot-seed1"), signal.SIGKILL)
    process.join(90)
    assert process.exitcode == 0
    rows = rows_of(tmp_path)
    assert rows["metasgd"]["status"] == "failed"
    assert "not finite at step 0" in rows["metasgd"]["reason"]
    assert (rows["metasgd"]["mse"], rows["metasgd"]["bold"]) == (None, False)
    assert rows["maml"]["status"] == "done"
    assert [seed["seed"] for seed in rows["maml"]["seeds"]] == [0, 1]
    assert rows["maml"]["mse"] == rows_of(whole)["maml"]["mse"]
    shown = (tmp_path / "table.md").read_text()
    assert "| failed |" in shown
    assert "; cells/metasgd-3shot-seed0/nonfinite has the task" in shown
    before = times_of(tmp_path / "cells" / "maml-3shot-seed0")
    assert main(words) == 0
    assert "metasgd-3shot-seed0 failed before" in capsys.readouterr().err
    rows = rows_of(tmp_path)
    assert (rows["maml"]["status"], rows["metasgd"]["status"]) == ("done", "failed")
    assert times_of(tmp_path / "cells" / "maml-3shot-seed0") == before


def test_the_search_takes_the_best_on_validation_tasks(tmp_path: Path):
    search = ("--search", "1e38,0.03,0.0001", "--search-iterations", "4", "--search-tasks", "5")
    words = [*GRID, "--iterations", "5", *search, "--out", str(tmp_path)]
    assert main(words) == 0
    found = json.loads((tmp_path / "search.json").read_text())
    assert (found["iterations"], found["tasks"], found["split"]) == (4, 5, "val")
    for row in found["rows"]:
        scores = {score["lr"]: score for score in row["scores"]}
        assert "not finite" in scores.pop(1e38)["reason"]
        for lr, score in scores.items():
            run = tmp_path / "search" / f"{row['label']}-3shot-seed0-lr{lr:g}"
            (file,) = run.glob("evaluations/*.json")
            judged = json.loads(file.read_text())
            assert (judged["split"], judged["step"], judged["mse"]) == ("val", 4, score["mse"])
        best = min(scores, key=lambda lr: scores[lr]["mse"])
        assert row["lr"] == best
        for seed in (0, 1):
            cell = tmp_path / "cells" / f"{row['label']}-3shot-seed{seed}"
            assert json.loads((cell / "config.json").read_text())["lr"] == best
    protocol = table_of(tmp_path)["protocol"]
    assert "by 5 validation tasks after 4 iterations" in protocol["line"]


def test_the_search_chooses_the_rate_of_the_geometry_where_there_is_one(tmp_path: Path):
    search = ("--search", "0.03,0.0001", "--search-geometry", "0.01,0.001")
    few = ("--search-iterations", "4", "--search-tasks", "5")
    assert main([*GRID, "--iterations", "5", *search, *few, "--out", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "search.json").read_text())
    rows = {row["label"]: row for row in found["rows"]}
    assert [s["geometry_lr"] for s in rows["maml"]["scores"]] == [None, None]
    tried = {(s["lr"], s["geometry_lr"]): s["mse"] for s in rows["metasgd"]["scores"]}
    assert list(tried) == [(0.03, 0.01), (0.03, 0.001), (0.0001, 0.01), (0.0001, 0.001)]
    assert len(set(tried.values())) == 4
    best = min(tried, key=lambda rates: tried[rates])
    for seed in (0, 1):
        stored = json.loads((tmp_path / f"cells/metasgd-3shot-seed{seed}/config.json").read_text())
        assert (stored["lr"], stored["geometry_lr"]) == best
    line = table_of(tmp_path)["protocol"]["line"]
    assert f"{best[0]:g} and {best[1]:g}" in line
    assert "the geometry's outer learning rate from {0.01, 0.001}, by 5 validation tasks" in line
    page = (tmp_path / "report.html").read_text()
    assert f"α = {best[0]:g}, geometry {best[1]:g}" in page


# Pictures, and the rows without which a table says little

PICTURES = (
    *("compare", "--data", "glyphs", "--methods", "maml,blockiaf", "--shots", "1", "--seeds", "1"),
    *("--width", "4", "--image-size", "16", "--queries", "4", "--steps", "1", "--lr", "0.1"),
    *("--iterations", "2", "--validate-every", "0", "--tasks-per-step", "2", "--test-tasks", "8"),
    "--vectorize",
    "False",
)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("compare") / "pictures"
    assert main([*PICTURES, "--recipes", "authors", "--out", str(out)]) == 0
    return out


@pytest.mark.slow
def test_of_a_study_all_but_the_weights_is_kept(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(study.STUDIES, pictures.name, Study("x", "--data glyphs", ""))
    study.keep(pictures.name, pictures.parent, tmp_path)
    kept = tmp_path / pictures.name
    assert (kept / "table.md").read_bytes() == (pictures / "table.md").read_bytes()
    assert not list(kept.rglob("*.safetensors"))
    assert {c.name for c in kept.glob("cells/*")} == {c.name for c in pictures.glob("cells/*")}
    header, *lines = (kept / "test-tasks.csv").read_text().splitlines()
    means = np.array([line.split(",") for line in lines], dtype=float).mean(0)
    shown = dict(zip(header.split(","), means, strict=True))
    for row in rows_of(pictures).values():
        if row["seeds"][0]["run"] and row["group"] != "control":
            assert shown[Path(row["seeds"][0]["run"]).name] == pytest.approx(row["accuracy"], 1e-4)
    study.restore(pictures.name, tmp_path / "runs", tmp_path)
    for cell in kept.glob("cells/*"):
        job = Job(**read_json(pictures / "jobs" / f"{cell.name}.json"))
        before, after = (
            read_record(replace(job, out=str(out)))
            for out in (pictures, tmp_path / "runs" / pictures.name)
        )
        assert after.done
        assert after.found["accuracy"] == pytest.approx(before.found["accuracy"], 1e-4)


def test_controls_stand_below_the_methods(pictures: Path):
    rows = rows_of(pictures)
    assert {label: row["group"] for label, row in rows.items()} == {
        "maml": "paper",
        "blockiaf": "paper",
        "anil": "control",
        "metasgd-as-blockiaf": "control",
        "nearest-mean-features": "control",
        "nearest-mean-pixels": "control",
    }
    assert {row["status"] for row in rows.values()} == {"done"}
    assert all(row["difference_to_maml"] for label, row in rows.items() if label != "maml")


def test_the_control_is_trained_as_the_map_is(pictures: Path):
    configs = {
        label: json.loads((pictures / "cells" / f"{label}-1shot-seed0/config.json").read_text())
        for label in ("maml", "blockiaf", "metasgd-as-blockiaf")
    }
    for key in ("optimizer", "outer_lr", "momentum", "weight_decay", "schedule", "decay_every"):
        assert configs["metasgd-as-blockiaf"][key] == configs["blockiaf"][key]
    assert configs["metasgd-as-blockiaf"]["method"] == "metasgd"
    assert (configs["blockiaf"]["optimizer"], configs["maml"]["optimizer"]) == ("sgd", "adam")


def nearest(support, labels, query):
    """The same in numpy, one query at a time."""
    means = np.stack([support[labels == c].mean(0) for c in range(5)])
    return np.array([np.square(means - q).sum(1).argmin() for q in query])


def test_nearest_class_means_are_judged_on_the_same_tasks(pictures: Path):
    stream = mm.tasks("glyphs", "test", queries=4, batch=1, image_size=16)
    model = mm.load(pictures / "cells" / "maml-1shot-seed0").model
    right: dict[str, list[float]] = {"pixels": [], "features": []}
    for i in range(8):
        support, query = stream.task(i, 0)
        with torch.no_grad():
            features = [model.blocks(x).flatten(1).numpy() for x in (support.x, query.x)]
        pixels = [x.flatten(1).numpy() for x in (support.x, query.x)]
        for kind, (known, new) in (("pixels", pixels), ("features", features)):
            answers = nearest(known, support.y.numpy(), new)
            right[kind].append(100 * float((answers == query.y.numpy()).mean()))
    rows = rows_of(pictures)
    for kind, accuracies in right.items():
        row = rows[f"nearest-mean-{kind}"]
        assert row["accuracy"] == pytest.approx(np.mean(accuracies))
        difference = np.array(accuracies) - tasks_of(pictures, "maml-1shot-seed0", "accuracy")
        assert row["difference_to_maml"]["mean"] == pytest.approx(difference.mean())


# Mistakes


MISTAKES = {
    "no such method": (("--methods", "maml,sgd"), ("'sgd'", "choose from")),
    "no such option": (("--methods", "blockiaf:depth=3"), ("depth",)),
    "twice": (("--methods", "maml,maml"), ("maml twice",)),
    "no shots": (("--shots", ""), ("shots is ''",)),
    "half a shot": (("--shots", "1.5"), ("'1.5'", "number")),
    "no seeds": (("--seeds", "0"), ("seeds is 0", "at least 1")),
    "seeds of nobody": (("--seeds", "1,ecml=3"), ("'ecml'", "maml, metasgd")),
    "no jobs": (("--jobs", "0"), ("jobs is 0", "at least 1")),
    "one task": (("--test-tasks", "1"), ("test_tasks is 1",)),
    "one candidate": (("--search", "0.1"), ("search", "at least two")),
    "search and lr": (("--search", "0.1,0.2", "--lr", "0.1"), ("one of them",)),
    "a geometry's rates alone": (
        ("--search-geometry", "0.1,0.2"),
        ("search_geometry is 0.1,0.2", "goes with search"),
    ),
    "a geometry's rates and rate": (
        ("--search", "0.1,0.2", "--search-geometry", "0.1,0.2", "--geometry-lr", "0.1"),
        ("in place of geometry_lr",),
    ),
    "a negative rate": (("--lr", "-1"), ("lr is -1.0",)),
    "a list of seeds": (("--seeds", "0,1,2"), ("seeds is given twice in '0,1,2'", "maml=3")),
    "a candidate that is none": (("--search", "0.1,nan"), ("lr is nan",)),
    "no such device": (("--device", "abacus"), ("device is 'abacus'", "choose auto")),
    "no data": (("--data", "cub"), ("cub is not installed", "data add")),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named_before_anything_is_trained(mistake: str, tmp_path: Path, capsys):
    given, words = MISTAKES[mistake]
    out = tmp_path / "out"
    assert_command_refused(capsys, main([*GRID, "--out", str(out), *given]), *words)
    assert not (out / "cells").exists()


def test_other_settings_are_refused_in_the_same_folder(whole: Path, capsys):
    before = times_of(whole)
    code = main([*GRID, "--out", str(whole), "--steps", "3"])
    assert_command_refused(capsys, code, "started with steps 2, not 3", "--out")
    assert times_of(whole) == before


def test_a_config_file_gives_the_settings(tmp_path: Path, capsys):
    file = tmp_path / "base.toml"
    file.write_text('method = "maml"\ndata = "sinusoid"\nshots = 4\nsteps = 1\niterations = 2\n')
    words = ("--methods", "maml", "--no-controls", "--seeds", "1", "--test-tasks", "2")
    out = tmp_path / "out"
    assert (
        main(
            [
                "compare",
                "--config",
                str(file),
                *words,
                "--width",
                "8",
                "--vectorize",
                "False",
                "--out",
                str(out),
            ]
        )
        == 0
    )
    protocol = table_of(out)["protocol"]
    assert (protocol["shots"], protocol["steps"], protocol["width"]) == ([4], 1, 8)
