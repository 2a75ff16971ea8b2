"""From a folder of images to a start for their features, and to more classes than it was for."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import metamirror as mm
from metamirror.cli.main import main
from tests.estimators.test_backbones import Body, onnx_file
from tests.refusals import assert_refused

PAGE = Path(__file__).parents[2] / "docs" / "features.md"
SMALL = ["--ways", "2", "--queries", "2", "--iterations", "1", "--val-tasks", "2"]
ANY = ["protonet", "protomaml", "r2d2", "metaoptnet", "maml:start=ridge"]


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return onnx_file(Body(), tmp_path_factory.mktemp("files") / "body.onnx")


@pytest.fixture
def place(network: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of twelve classes, seven of which are to be told apart, and a network."""
    monkeypatch.setenv("METAMIRROR_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    for label in range(12):
        for part in ("PATH", "images")[: 1 + (label < 7)]:
            (tmp_path / part / f"class {label}").mkdir(parents=True)
            for i in range(4):
                pixels = random.integers(0, 80, (24, 24, 3), dtype=np.uint8) + 14 * np.uint8(label)
                Image.fromarray(pixels).save(tmp_path / part / f"class {label}" / f"{i}.png")
    shutil.copy(network, tmp_path)
    return tmp_path


def commands_of_page() -> list[list[str]]:
    section = PAGE.read_text().partition("## Meta-train on features")[2]
    return [shlex.split(words) for words in re.findall(r"^    metamirror (.*)$", section, re.M)]


def test_the_commands_of_the_page_take_more_classes_than_were_trained(place: Path):
    embed, train, adapt = commands_of_page()
    for words in (embed, [*train, *SMALL], adapt):
        assert main(words) == 0
    assert len(mm.FewShotClassifier.load("mine.safetensors").classes_) == 7


def test_what_embed_says_comes_next_takes_more_classes_too(place: Path, capsys):
    embed, _, adapt = commands_of_page()
    assert main(embed) == 0
    next_words = capsys.readouterr().out.partition("next: metamirror ")[2]
    assert main([*shlex.split(next_words), *SMALL, "--out", "runs/features"]) == 0
    assert main(adapt) == 0


@pytest.mark.parametrize("spec", ANY)
@pytest.mark.parametrize("adapts", ["all", "head"])
def test_what_a_refusal_recommends_takes_any_number(spec: str, adapts: str):
    rows, labels = np.random.default_rng(0).normal(size=(14, 6)), list("abcdefg") * 2
    bound = mm.make_learner("blockiaf", mm.models.Linear(6, 5), start="ridge", adapts="head")
    assert_refused(lambda: mm.FewShotClassifier(bound).fit(rows, labels), f"{spec}.*any number")
    free = mm.make_learner(spec, mm.models.Linear(6, 5), adapts=adapts)
    assert len(mm.FewShotClassifier(free).fit(rows, labels).classes_) == 7
