"""`metamirror cost`: what it prints, and what it refuses."""

from __future__ import annotations

import json

import pytest
import torch

from metamirror.cli.main import main
from metamirror.experiments.cost import Workload, parse_methods, parse_shape
from metamirror.methods import METHODS

TINY = "--shape 1x16x16 --ways 2 --shots 1 --width 4 --steps 1 --tasks 1 --rounds 3 --threads 1"


@pytest.mark.slow
def test_json_tells_time_ratio_memory_and_parameters(own_method, capsys):
    methods = f"{own_method}:positive=true"
    words = ["--methods", methods, "--import", "own_module", "--json"]
    assert main(["cost", *TINY.split(), *words]) == 0
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert (found["shape"], found["shots"], found["threads"]) == ("1x16x16", 1, 1)
    assert (found["device"], found["torch"]) == ("cpu", torch.__version__)
    maml, other = found["rows"]
    assert (maml["method"], other["method"]) == ("maml", methods)
    assert (maml["relative_to_maml"], maml["extra_parameters"]) == (1.0, 0)
    # A rate for each parameter.
    model = Workload(shape=(1, 16, 16), ways=2, width=4).model()
    assert other["extra_parameters"] == sum(p.numel() for p in model.parameters())
    for row in found["rows"]:
        low, high = row["ci95"]
        assert low <= row["relative_to_maml"] <= high
        assert row["ms_per_iteration"] > 0
        # torch alone takes more than a hundred megabytes.
        assert 100 < row["idle_mb"] <= row["peak_mb"] < 5000
    assert "cost: 6/6" in printed.err


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("--shape 3x84", "shape is '3x84'; give omniglot, mini-imagenet, or channels x height"),
        ("--shape 0x28x28", "shape is '0x28x28'"),
        ("--shape imagenet", "shape is 'imagenet'"),
        ("--shape 3x84x80", "84x80; conv4 takes square ones"),
        ("--shape 3x8x8", "8x8; conv4 takes square ones from 16x16"),
        ("--shape 3x90000x90000", "this machine has"),
        ("--width 100000000", "this machine has"),
        ("--width 100000000 --recompute", "this machine has"),
        ("--methods maml,none", "no method is called 'none'"),
        ("--methods blockiaf:colour=red", "blockiaf has no option 'colour'"),
        ("--methods maml,", "no method is called ''"),
        ("--rounds 2", "rounds is 2; an interval needs at least 3"),
        ("--threads 0", "threads is 0; it must be at least 1"),
        ("--steps 0", "steps is 0; it must be at least 1"),
        ("--tasks -4", "tasks is -4; it must be at least 1"),
        ("--device cuda:99", "device is 'cuda:99', which this machine does not have"),
        ("--device tpu", "device is 'tpu'; choose auto, cpu, cuda, cuda:N or mps"),
    ],
)
def test_a_mistake_is_named_before_anything_starts(words, complaint, capsys, monkeypatch):
    monkeypatch.setattr("metamirror.experiments.paired_timing.open_workers", None)
    assert main(["cost", *words.split()]) == 2
    assert complaint in capsys.readouterr().err


def test_all_means_the_registry_with_maml_once_and_first():
    assert parse_methods("all") == list(METHODS)
    assert parse_methods("gradnet, maml,gradnet") == ["maml", "gradnet"]


def test_shapes_have_names():
    assert parse_shape("omniglot") == (1, 28, 28)
    assert parse_shape("mini-imagenet") == (3, 84, 84)
