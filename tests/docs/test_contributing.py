"""The listings of CONTRIBUTING.md run, and its example is a method like the others."""

from __future__ import annotations

import re
from pathlib import Path

import torch

import metamirror as mm
from metamirror.cli.main import main
from metamirror.data import DATA_SETS
from metamirror.data.registry import DataSet
from metamirror.testing.networks import smooth_mlp
from tests.docs.listings import listings, run
from tests.networks import point_tasks

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "CONTRIBUTING.md"


def test_the_example_is_thirty_lines():
    method = listings(PAGE)[0]
    assert sum(bool(line.strip()) for line in method.splitlines()) <= 30


def test_the_example_passes_the_checks_and_learns(monkeypatch):
    monkeypatch.setitem(mm.METHODS, "layerwise", run(PAGE).METHOD)  # which checks it
    learner = mm.make_learner("layerwise", smooth_mlp(), lr=0.1)
    before = learner.meta_loss(point_tasks())
    optimizer = torch.optim.Adam(learner.parameters(), lr=1e-2)
    for _ in range(20):
        optimizer.zero_grad()
        learner.meta_loss(point_tasks()).backward()
        optimizer.step()
    assert learner.meta_loss(point_tasks()).item() < before.item()


def test_the_data_set_of_the_example_is_found_by_every_command(monkeypatch, tmp_path, capsys):
    row = DataSet("parabolas", "-", stream=run(PAGE).Parabolas)
    monkeypatch.setitem(DATA_SETS, "parabolas", row)
    words = ["--data", "parabolas", "--method", "maml", "--iterations", "2"]
    assert main(["train", *words, "--out", str(tmp_path / "run")]) == 0
    assert main(["data", "list"]) == 0
    assert "parabolas" in capsys.readouterr().out
    assert main(["data", "add", "parabolas"]) == 2
    assert "'parabolas' cannot be added: it is built in" in capsys.readouterr().err


def test_the_map_names_every_package_and_nothing_else():
    shown = re.findall(r"^      (\w+)/ ", PAGE.read_text(), re.MULTILINE)
    packages = (ROOT / "src" / "metamirror").glob("[a-z]*/")
    assert sorted(shown) == sorted(folder.name for folder in packages)


def test_what_the_map_places_is_there():
    table = PAGE.read_text().partition("| where is")[2].partition("\n\n")[0]
    places = [re.findall(r"`([\w/.]+)`", line.split("|")[2]) for line in table.splitlines()[2:]]
    assert len(places) > 15
    for words in places:
        for word in words:
            if word.endswith(".py"):
                text = (ROOT / "src" / "metamirror" / word).read_text()
            else:
                assert re.search(rf"\b{word.rpartition('.')[2]}\b", text), words
