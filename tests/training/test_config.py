"""Configurations: files, presets, and flags above them."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from metamirror.cli.main import main
from metamirror.methods import find_method
from metamirror.training.config import RunConfig, load_config
from tests.runs import SMALL

PRESETS = sorted((Path(__file__).parents[2] / "configs").glob("*"))


def written(path: Path, config: RunConfig = SMALL, **changes) -> Path:
    path.write_text(json.dumps(asdict(config) | changes))
    return path


def test_there_are_presets():
    assert {"sinusoid.toml", "mini-imagenet-5shot-blockiaf.toml"} <= {p.name for p in PRESETS}


@pytest.mark.parametrize("preset", PRESETS, ids=lambda p: p.name)
def test_every_preset_is_a_configuration(preset: Path):
    config = load_config(preset)
    config.check()
    find_method(config.method)


@pytest.mark.parametrize("shots", [1, 5])
def test_the_presets_of_the_paper_are_its_protocol(shots: int):
    folder = PRESETS[0].parent
    plain = load_config(folder / f"mini-imagenet-{shots}shot.toml")
    paper = RunConfig(
        method="maml",
        data="mini-imagenet",
        model="conv4",
        width=64,
        image_size=84,
        ways=5,
        shots=shots,
        queries=15,
        steps=5,
        lr=0.01,
        iterations=60_000,
        tasks_per_step=4,
        optimizer="adam",
        outer_lr=1e-3,
        validate_every=2_000,
        val_tasks=1_000,
    )
    assert plain == paper
    assert load_config(folder / f"mini-imagenet-{shots}shot-blockiaf.toml") == replace(
        paper,
        method="blockiaf",
        optimizer="sgd",
        momentum=0.9,
        weight_decay=1e-4,
        schedule="step",
        decay_every=20_000,
        decay_factor=0.1,
    )


def test_a_configuration_comes_back_from_its_file(tmp_path: Path):
    assert load_config(written(tmp_path / "config.json")) == SMALL
    assert load_config(tmp_path) == SMALL


BAD_FILES = {
    "a near miss": ({"otuer_lr": 1}, r"unknown key 'otuer_lr'; did you mean 'outer_lr'\?"),
    "a key from nowhere": ({"quantum": 1}, "unknown key 'quantum'; known: method, "),
    "a bad choice": ({"optimizer": "lion"}, "optimizer is 'lion'.*'adam'"),
    "half an iteration": ({"iterations": 1.5}, "iterations is 1.5"),
    "an endless run": ({"iterations": float("inf")}, "iterations is too large"),
    "a rate beyond all floats": ({"lr": 10**400}, "lr is too large"),
}


@pytest.mark.parametrize("mistake", BAD_FILES)
def test_a_mistake_in_a_file_is_named(mistake: str, tmp_path: Path):
    changes, words = BAD_FILES[mistake]
    with pytest.raises(ValueError, match=words):
        load_config(written(tmp_path / "config.json", **changes))


@pytest.mark.parametrize("name", ["preset.toml", "run.json", "runs/x"])
def test_a_missing_file_is_named(name: str, tmp_path: Path):
    with pytest.raises(ValueError, match="there is no"):
        load_config(tmp_path / name)


@pytest.mark.parametrize(
    "text", ["method = ", "ways = " + "[" * 2000 + "]" * 2000, f"ways = {'9' * 5000}"], ids=len
)
def test_toml_that_is_none_is_named(text: str, tmp_path: Path):
    (tmp_path / "a.toml").write_text(text)
    with pytest.raises(ValueError, match=r"a\.toml is not valid TOML"):
        load_config(tmp_path / "a.toml")


BAD_VALUES = {
    "iterations": 0,
    "tasks_per_step": 0,
    "shots": -1,
    "ways": 0,
    "steps": -1,
    "lr": float("nan"),
    "outer_lr": -1.0,
    "geometry_lr": float("inf"),
    "momentum": 1.0,
    "weight_decay": -0.1,
    "decay_every": 0,
    "decay_factor": 0.0,
    "clip_norm": 0.0,
    "clip_value": -1.0,
    "validate_every": -1,
    "val_tasks": 1,
    "checkpoint_every": 0,
    "log_every": 0,
    "width": 0,
    "image_size": 0,
    "seed": -1,
}
TOO_MANY = ("iterations", "tasks_per_step", "shots", "ways", "steps", "val_tasks", "width")


@pytest.mark.parametrize("name", BAD_VALUES)
def test_a_value_that_no_run_can_have_is_named(name: str):
    with pytest.raises(ValueError, match=f"^{name} is {BAD_VALUES[name]}"):
        replace(SMALL, **{name: BAD_VALUES[name]}).check()


@pytest.mark.parametrize("name", TOO_MANY)
def test_a_count_beyond_all_machines_is_named(name: str):
    with pytest.raises(ValueError, match=f"^{name} is {10**30}"):
        replace(SMALL, **{name: 10**30}).check()


def test_a_run_can_be_started_again_from_its_own_file(tmp_path: Path):
    first, again, other = (tmp_path / name for name in ("first", "again", "other"))
    config = ["--config", str(written(tmp_path / "base.json"))]
    assert main(["train", *config, "--out", str(first)]) == 0
    config = ["--config", str(first / "config.json")]
    assert main(["train", *config, "--out", str(again)]) == 0
    assert (again / "metrics.jsonl").read_bytes() == (first / "metrics.jsonl").read_bytes()
    # Flags stand above the file.
    assert main(["train", *config, "--iterations", "2", "--out", str(other)]) == 0
    assert load_config(other) == replace(SMALL, lr=0.01, iterations=2)


def test_an_unknown_key_ends_with_2(tmp_path: Path, capsys):
    file = written(tmp_path / "config.json", lrr=1)
    assert main(["train", "--config", str(file), "--out", str(tmp_path / "run")]) == 2
    assert "unknown key 'lrr'" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
