"""Networks whose outputs are not one row for each image, or depend on the other images."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import metamirror as mm
from metamirror.cli.main import main
from metamirror.estimators.backbones.backbone import FeatureModule
from metamirror.estimators.backbones.opening import open_backbone
from tests.estimators.test_backbones import Body, onnx_file, pictures, pt2_file
from tests.refusals import assert_command_refused, assert_refused


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METAMIRROR_HOME", str(tmp_path / "home"))


class Patches(Body):
    """Gives (images, tokens, d), as a transformer does."""

    def forward(self, x):
        return super().forward(x).flatten(2).mT


@pytest.mark.parametrize("kind", ["module", "onnx", "pt2"])
def test_tokens_are_not_taken_for_feature_maps(kind: str, tmp_path: Path):
    files = {"onnx": onnx_file, "pt2": pt2_file}
    given = Patches() if kind == "module" else files[kind](Patches(), tmp_path / f"body.{kind}")
    words = r"\(2, 49, 6\).*the class token.*or the mean over tokens"
    assert_refused(lambda: open_backbone(given).read(pictures(2)), words)


def test_nor_in_an_exported_graph():
    module = FeatureModule(open_backbone(Patches()))
    assert_refused(lambda: module(torch.zeros(2, 3, 24, 24)), "Patches gives.*the class token")


def test_normalisation_by_the_batch_is_refused(folder_of_one: Path, capsys):
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False))
    for given in (network, mm.models.Conv4(ways=2, channels=3, image_size=28, width=4)):
        assert_refused(
            lambda given=given: open_backbone(given), "by the batch in .*: build it with"
        )
    assert_refused(lambda: mm.Backbone(network, size=8), "in 1, without running averages")
    name = f"{__name__}:by_batch"
    words = ["--support", str(folder_of_one), "--out", str(folder_of_one / "m")]
    assert_command_refused(capsys, main(["adapt", "--backbone", name, *words]), "by the batch in 0")


by_batch = nn.Sequential(nn.BatchNorm2d(3, track_running_stats=False))


@pytest.fixture
def folder_of_one(tmp_path: Path) -> Path:
    for label, image in zip("ab", pictures(2), strict=True):
        (tmp_path / "mine" / label).mkdir(parents=True)
        image.save(tmp_path / "mine" / label / "0.png")
    return tmp_path / "mine"
