"""Frozen networks as backbones: right preprocessing, any kind, kept features, saved models."""

from __future__ import annotations

import copy
import hashlib
import os
import pickle
import shutil
import warnings
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torch import nn

import metamirror as mm
from metamirror.cli.main import main
from metamirror.estimators.backbones.feature_cache import FeatureCache
from metamirror.estimators.backbones.opening import open_backbone
from metamirror.estimators.export import export
from metamirror.estimators.starts import shipped_names
from tests.refusals import assert_command_refused, assert_refused


class Body(nn.Module):
    """A small network with batch normalisation, whose averages are of a training."""

    pretrained_cfg: ClassVar = {
        "input_size": (3, 24, 24),
        "crop_pct": 0.75,
        "mean": (0.1, 0.2, 0.3),
        "std": (0.5,) * 3,
    }

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 6, 5, stride=3), nn.BatchNorm2d(6), nn.ReLU())
        self.layers(torch.randn(20, 3, 24, 24))

    def forward(self, x):
        return self.layers(x)


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("METAMIRROR_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def body() -> Body:
    torch.manual_seed(0)
    return Body()


@pytest.fixture(scope="module")
def onnx_body(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same network as a file."""
    torch.manual_seed(0)
    return onnx_file(Body(), tmp_path_factory.mktemp("files") / "body.onnx")


def pictures(count: int = 12, size: tuple[int, int] = (40, 30)) -> list[Image.Image]:
    """Pictures of three kinds, by their colour."""
    random = np.random.default_rng(0)
    found = []
    for i in range(count):
        pixels = random.integers(0, 80, (size[1], size[0], 3))
        pixels[..., i % 3] += 150
        found.append(Image.fromarray(pixels.astype(np.uint8)))
    return found


LABELS = ["red", "green", "blue"] * 4


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for i, (image, label) in enumerate(zip(pictures(), LABELS, strict=True)):
        (tmp_path / "mine" / label).mkdir(parents=True, exist_ok=True)
        image.save(tmp_path / "mine" / label / f"{i:02d}.png")
    return tmp_path / "mine"


def by_hand(body: nn.Module, image: Image.Image) -> torch.Tensor:
    """The middle three quarters of the middle square, by PIL, and the network in evaluation."""
    left, top = (side - min(image.size) for side in image.size)
    square = image.crop((left // 2, top // 2, left // 2 + 30, top // 2 + 30))
    small = square.resize((24, 24), Image.Resampling.LANCZOS, (3.75, 3.75, 26.25, 26.25))
    pixels = torch.tensor(np.asarray(small)).movedim(2, 0).float() / 255
    x = (pixels - torch.tensor([0.1, 0.2, 0.3]).view(3, 1, 1)) / 0.5
    with torch.no_grad():
        return body.eval()(x[None]).mean((2, 3))[0]


def onnx_file(body: nn.Module, path: Path, batch: str | None = "batch") -> Path:
    dims = None if batch is None else ({0: torch.export.Dim("batch", min=1)},)
    examples = torch.zeros(2, 3, 24, 24)
    with warnings.catch_warnings(action="ignore"):
        program = torch.onnx.export(
            body.eval(), (examples,), dynamic_shapes=dims, dynamo=True, verbose=False
        )
    program.save(str(path))
    return path


def pt2_file(body: nn.Module, path: Path) -> Path:
    dims = ({0: torch.export.Dim("batch", min=1)},)
    torch.export.save(
        torch.export.export(body.eval(), (torch.zeros(2, 3, 24, 24),), dynamic_shapes=dims), path
    )
    return path


# What it computes


def test_preprocessing_is_read_from_the_network_and_is_right(body: Body):
    images = pictures(3)
    found = open_backbone(body).read(images)
    expected = torch.stack([by_hand(body, image) for image in images])
    torch.testing.assert_close(found.float(), expected, rtol=1e-5, atol=1e-6)


def test_batch_normalisation_is_in_evaluation_mode_and_the_network_left_as_it_was(body: Body):
    body.train()
    before = body.layers[1].running_mean.clone()
    images = pictures(5)
    backbone = mm.Backbone(body, 24, fingerprint="")
    together, alone = backbone.read(images), backbone.read(images[:1])
    torch.testing.assert_close(together[:1], alone)
    assert body.training
    assert torch.equal(body.layers[1].running_mean, before)


@pytest.mark.parametrize("kind", ["onnx", "onnx of two images", "pt2"])
def test_files_give_what_the_module_gives(kind: str, body: Body, tmp_path: Path):
    if kind == "pt2":
        path = pt2_file(body, tmp_path / "body.pt2")
    else:
        path = tmp_path / "body.onnx"
        onnx_file(body, path, "batch" if kind == "onnx" else None)
    spec = f"{path}:crop=0.75:mean=0.1/0.2/0.3:std=0.5"
    images = pictures(5)
    found, expected = (open_backbone(given).read(images) for given in (spec, body))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_flip_gives_the_mean_over_both_sides(body: Body, onnx_body: Path, tmp_path: Path):
    import onnxruntime

    images = pictures()
    sides = [images, [ImageOps.mirror(image) for image in images]]
    expected = sum(open_backbone(body).read(side) for side in sides) / 2
    both = replace(open_backbone(body), flip=True)
    torch.testing.assert_close(both.read(images), expected)
    spec = f"{onnx_body}:crop=0.75:mean=0.1/0.2/0.3:std=0.5:flip=true"
    torch.testing.assert_close(open_backbone(spec).read(images), expected, rtol=1e-4, atol=1e-5)
    assert both.facts != open_backbone(body).facts, "kept features would be mixed up"
    clf = mm.FewShotClassifier(backbone=both).fit(images, LABELS)
    export(clf, tmp_path / "mine.onnx", "onnx")
    session = onnxruntime.InferenceSession(tmp_path / "mine.onnx")
    pixels = np.stack([np.asarray(image) for image in images])
    (probabilities,) = session.run(["probabilities"], {"images": pixels})
    np.testing.assert_allclose(probabilities, clf.predict_proba(images), atol=0.02)
    assert_refused(lambda: mm.Backbone(body, flip="yes"), "flip is 'yes'")


def test_a_function_is_given_pictures_or_whatever_there_is(folder: Path):
    seen = []

    def lengths(examples: list) -> np.ndarray:
        seen.extend(examples)
        return np.array([[len(e), e.count("a")] for e in examples])

    words = ["banana", "a", "papaya", "tt", "ttt", "t"]
    clf = mm.FewShotClassifier(backbone=lengths).fit(words, ["a", "a", "a", "t", "t", "t"])
    assert clf.predict(["salat"]).tolist() == ["a"]
    assert seen[:6] == words

    def colours(images: list[Image.Image]) -> list[list[float]]:
        return [np.asarray(image).mean((0, 1)).tolist() for image in images]

    files = sorted(folder.glob("*/*.png"))
    clf = mm.FewShotClassifier(backbone=colours).fit(files, [f.parent.name for f in files])
    assert clf.score([str(f) for f in files], [f.parent.name for f in files]) == 1


@pytest.mark.parametrize("augment", ["none", "flip"])
def test_a_run_as_backbone_normalises_by_its_train_classes(augment: str, tmp_path: Path):
    random = np.random.default_rng(0)
    x = random.normal(128, 40, (60, 3, 16, 16)).clip(0, 255).astype(np.uint8)
    np.savez(tmp_path / "own.npz", x=x, y=np.repeat(np.arange(10), 6))
    data, run = f"arrays:{tmp_path / 'own.npz'}", str(tmp_path / "run")
    options = "--method protonet --iterations 1 --width 4 --val-tasks 2 --ways 2 --queries 2"
    options += f" --augment {augment}"
    assert main(["train", "--data", data, *options.split(), "--out", run]) == 0
    backbone = open_backbone(run)
    assert backbone.flip == (augment == "flip"), "it knows both sides of an image"
    images = mm.tasks(data, split="test", ways=2, queries=2, batch=1)[0].query.x[0]
    together, alone = backbone.read(images), backbone.read(images[:1])
    torch.testing.assert_close(together[:1], alone, rtol=1e-4, atol=1e-5)
    learner = mm.load(run)
    train = mm.tasks(data, ways=6, shots=3, queries=2, batch=1)[0].support.x[0]
    with torch.no_grad():
        near = learner.layer_input("head", learner.theta(), torch.cat([images, train]))
    off = (together - near[: len(images)]).norm() / near[: len(images)].norm()
    assert off < 0.3, "the statistics are those of other images of this kind"
    assert open_backbone(run).facts == backbone.facts


# What is kept


def test_features_are_computed_once_for_each_picture(own_home: Path):
    calls = []

    def network(x):
        calls.append(len(x))
        return x.mean((2, 3))

    images = pictures(5)
    backbone = mm.Backbone(network, size=8, fingerprint="one")
    first = backbone.read(images)
    again = mm.Backbone(network, size=8, fingerprint="one").read([images[2], images[0]])
    assert calls == [5]
    assert torch.equal(again, first[[2, 0]])
    mm.Backbone(network, size=8, fingerprint="two").read(images[:1])
    mm.Backbone(network, size=9, fingerprint="one").read(images[:1])
    mm.Backbone(network, size=8, mean=0, fingerprint="one").read(images[:1])
    assert calls == [5, 1, 1, 1], "another network, size or mean is another matter"


def test_a_changed_module_has_other_features(body: Body):
    images = pictures(2)
    backbone = open_backbone(body)
    before = backbone.read(images)
    with torch.no_grad():
        body.layers[0].weight.mul_(2)
    assert not torch.allclose(backbone.read(images), before)


def test_a_home_that_cannot_be_written_to_costs_time_alone(tmp_path: Path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("METAMIRROR_HOME", str(tmp_path / "file"))
    rows = mm.Backbone(lambda x: x.mean((2, 3)), size=8, fingerprint="one").read(pictures(2))
    assert rows.shape == (2, 3)
    assert "features are not kept" in capsys.readouterr().err


def test_a_damaged_cache_costs_time_alone(body: Body, capsys):
    backbone = open_backbone(body)
    expected = backbone.read(pictures(2))
    FeatureCache(backbone.facts).path.write_bytes(b"no database" * 1000)
    assert torch.equal(backbone.read(pictures(2)), expected)
    assert "not kept" not in capsys.readouterr().err
    assert len(FeatureCache(backbone.facts)._read(keys_of(backbone, pictures(2)))) == 2


def keys_of(backbone: mm.Backbone, images: np.ndarray) -> list[bytes]:
    """Under what a cache keeps the features of images."""
    return [hashlib.sha256(i.numpy().tobytes()).digest() for i in backbone.images.read(images)]


def test_a_change_that_torch_does_not_count_is_seen(body: Body):
    before = open_backbone(body).read(pictures(2))
    body.layers[0].weight.data.mul_(-1)
    assert not torch.allclose(open_backbone(body).read(pictures(2)), before)


@pytest.mark.parametrize("start", [n for n in shipped_names() if n.startswith("glyphs-")])
def test_a_start_for_letters_can_be_a_backbone(start: str):
    rows = open_backbone(start).read(pictures(3))
    assert rows.shape[0] == 3
    assert torch.equal(open_backbone(start).read(pictures(3)[:1]), rows[:1])


def test_an_onnx_backbone_is_pickled_by_its_file(onnx_body: Path, tmp_path: Path):
    path = tmp_path / "body.onnx"
    shutil.copy(onnx_body, path)
    images = pictures()
    clf = mm.FewShotClassifier(backbone=str(path)).fit(images, LABELS)
    content = pickle.dumps(clf)
    again = pickle.loads(content)
    assert np.array_equal(again.predict_proba(images), clf.predict_proba(images))
    assert np.array_equal(copy.deepcopy(clf).predict_proba(images), clf.predict_proba(images))
    path.unlink()
    with pytest.raises(FileNotFoundError):
        pickle.loads(content)


# The estimator


def test_saved_models_find_an_onnx_backbone_again(onnx_body: Path, tmp_path: Path):
    path = tmp_path / "body.onnx"
    shutil.copy(onnx_body, path)
    images = pictures()
    clf = mm.FewShotClassifier(backbone=str(path)).fit(images, LABELS)
    clf.save(tmp_path / "mine.safetensors")
    again = mm.FewShotClassifier.load(tmp_path / "mine.safetensors")
    assert np.array_equal(again.predict_proba(images), clf.predict_proba(images))
    assert again.partial_fit(images[:1], ["other"]).classes_.tolist() == [
        "blue",
        "green",
        "other",
        "red",
    ]
    onnx_file(Body(), path)
    assert_refused(lambda: mm.FewShotClassifier.load(tmp_path / "mine.safetensors"), "changed")


def test_options_of_a_backbone_are_saved(onnx_body: Path, tmp_path: Path):
    images = pictures()
    spec = f"{onnx_body}:crop=0.6:mean=0.5:std=0.1"
    clf = mm.FewShotClassifier(backbone=spec).fit(images, LABELS)
    clf.save(tmp_path / "mine.safetensors")
    again = mm.FewShotClassifier.load(tmp_path / "mine.safetensors")
    assert np.array_equal(again.predict_proba(images), clf.predict_proba(images))
    load = mm.FewShotClassifier.load
    other = f"{onnx_body}:crop=0.7"
    assert_refused(lambda: load(tmp_path / "mine.safetensors", backbone=other), "another one")


def test_weights_beside_an_onnx_file_are_part_of_it(body: Body, tmp_path: Path, monkeypatch):
    import onnx

    onnx_file(body, tmp_path / "one.onnx")
    whole = onnx.load(tmp_path / "one.onnx")
    images, found = pictures(2), []
    for scale in (1, 2):
        onnx.save(
            whole,
            tmp_path / "body.onnx",
            save_as_external_data=True,
            location="weights.bin",
            size_threshold=0,
        )
        if scale == 2:
            file = tmp_path / "weights.bin"
            file.write_bytes((np.frombuffer(file.read_bytes(), np.float32) * 2).tobytes())
        whole = onnx.load(tmp_path / "one.onnx")
        monkeypatch.chdir("/")
        found.append(open_backbone(str(tmp_path / "body.onnx")).read(images))
    assert not torch.allclose(*found)


def test_saved_models_of_a_module_want_it_again(body: Body, tmp_path: Path):
    clf = mm.FewShotClassifier(backbone=body).fit(pictures(), LABELS)
    clf.save(tmp_path / "mine.safetensors")
    load = mm.FewShotClassifier.load
    assert_refused(lambda: load(tmp_path / "mine.safetensors"), "pass backbone")
    again = load(tmp_path / "mine.safetensors", backbone=body)
    assert again.predict(pictures()).tolist() == clf.predict(pictures()).tolist() == LABELS
    mm.FewShotClassifier().fit(np.eye(4), list("aabb")).save(tmp_path / "rows.safetensors")
    assert_refused(lambda: load(tmp_path / "rows.safetensors", backbone=body), "without a backbone")


def test_a_start_for_rows_is_adapted_on_the_features(body: Body):
    start = mm.make_learner("maml", mm.models.Linear(6, 3), start="prototypes", steps=2, lr=0.1)
    clf = mm.FewShotClassifier(start, body).fit(pictures(), LABELS)
    assert clf.score(pictures(), LABELS) == 1
    letters = mm.FewShotClassifier("glyphs-blockiaf", body)
    assert_refused(lambda: letters.fit(pictures(), LABELS), "the start takes images")


def test_whole_numbers_stay_whole_for_a_network_that_looks_them_up():
    net = nn.Sequential(nn.EmbeddingBag(10, 4), nn.Linear(4, 2))
    learner = mm.make_learner("maml", net, steps=1, lr=0.1)
    tokens = np.array([[1, 2], [3, 4], [1, 5], [3, 6]])
    clf = mm.FewShotClassifier(learner).fit(tokens, ["a", "b", "a", "b"])
    assert clf.support_.x.dtype == torch.int64
    assert clf.predict_proba(tokens).shape == (4, 2)


# The commands


def test_from_a_folder_to_a_model_by_commands(onnx_body, folder: Path, tmp_path: Path, capsys):
    out = tmp_path / "mine.safetensors"
    words = ["--backbone", str(onnx_body), "--support", str(folder), "--out", str(out)]
    assert main(["adapt", *words]) == 0
    assert main(["predict", str(out), str(folder / "red" / "00.png")]) == 0
    assert "red (" in capsys.readouterr().out


@pytest.mark.parametrize("layout", ["classes", "splits"])
def test_embed_writes_what_tasks_are_drawn_from(layout, onnx_body, folder, tmp_path, capsys):
    path = onnx_body
    if layout == "splits":
        for split, label in zip(("train", "val", "test"), ("red", "green", "blue"), strict=True):
            (tmp_path / "split" / split).mkdir(parents=True)
            (folder / label).rename(tmp_path / "split" / split / label)
        folder = tmp_path / "split"
    out = tmp_path / "features.npz"
    assert main(["embed", "--backbone", str(path), "--data", str(folder), "--out", str(out)]) == 0
    assert "12 rows of 6 numbers" in capsys.readouterr().out
    with np.load(out) as found:
        assert found["x"].shape == (12, 6)
        assert sorted(set(found["y"])) == ["blue", "green", "red"]
        assert ("split" in found) == (layout == "splits")
        files = sorted((folder / "test" if layout == "splits" else folder).glob("blue/*.png"))
        expected = open_backbone(str(path)).read(files)
        np.testing.assert_allclose(found["x"][found["y"] == "blue"], expected, rtol=1e-5)


def test_embed_takes_a_data_set_with_its_splits(tmp_path: Path):
    x = np.random.default_rng(0).integers(0, 255, (30, 3, 16, 16), dtype=np.uint8)
    np.savez(
        tmp_path / "own.npz",
        x=x,
        y=np.repeat(np.arange(10), 3),
        split=["train"] * 18 + ["val"] * 6 + ["test"] * 6,
    )
    from metamirror.estimators.backbones.embed import embed

    backbone = mm.Backbone(lambda x: x.mean((2, 3)), size=16, crop=1, mean=0, std=1)
    shape = embed(backbone, f"arrays:{tmp_path / 'own.npz'}", tmp_path / "features.npz")
    assert shape == (30, 3)
    tasks = mm.tasks(f"arrays:{tmp_path / 'features.npz'}", split="test", ways=2, queries=1)
    assert tasks[0].support.x.shape == (4, 2, 3)
    with np.load(tmp_path / "features.npz") as found:
        np.testing.assert_allclose(found["x"], x.mean((2, 3)) / 255, rtol=1e-4)


# Refusals


def test_what_is_no_backbone_is_refused(body: Body, tmp_path: Path):
    (tmp_path / "no.onnx").write_bytes(b"nothing")
    (tmp_path / "no.pt2").write_bytes(b"nothing")
    with zipfile.ZipFile(tmp_path / "old.pt2", "w") as archive:
        archive.writestr("serialized_state_dict.pt", b"pickle")
    with zipfile.ZipFile(tmp_path / "new.pt2", "w") as archive:
        archive.writestr("weights.json", '{"config":{"w":[{"use\\u005fpickle":true}]}}')
    for given, words in [
        ("nothing.onnx", "there is no file"),
        (str(tmp_path / "no.onnx"), "cannot be run"),
        (str(tmp_path / "no.pt2"), "no program"),
        (str(tmp_path / "old.pt2"), "holds pickles"),
        (str(tmp_path / "new.pt2"), "holds pickles"),
        (f"{tmp_path / 'no.onnx'}:colour=3", "no option 'colour'"),
        ("words", "backbone is 'words'"),
        (3, "backbone is 3"),
        ("timm:resnet18", "timm cannot be used here"),
        ("os:system", "--import os"),
        (mm.load(Path(mm.__file__).parent / "starts" / "glyphs-maml"), "name its folder"),
    ]:
        assert_refused(lambda given=given: open_backbone(given), words)


@pytest.mark.parametrize(
    "output", [lambda x: (x,), lambda x: x.mean(), lambda x: x[:1].mean((2, 3))]
)
def test_what_gives_no_rows_is_refused(output):
    assert_refused(
        lambda: mm.Backbone(output, size=8).read(pictures(3)), "a backbone gives|returns one tensor"
    )


def test_a_command_without_start_and_backbone_is_refused(folder: Path, tmp_path: Path, capsys):
    code = main(["adapt", "--support", str(folder), "--out", str(tmp_path / "m")])
    assert_command_refused(capsys, code, "which start")


# Other programs


def test_an_exported_model_has_its_backbone_inside(body: Body, tmp_path: Path):
    import onnxruntime

    images = pictures()
    clf = mm.FewShotClassifier(backbone=body).fit(images, LABELS)
    export(clf, tmp_path / "mine.onnx", "onnx")
    session = onnxruntime.InferenceSession(tmp_path / "mine.onnx")
    pixels = np.stack([np.asarray(image) for image in images])
    probabilities, labels = session.run(["probabilities", "label"], {"images": pixels})
    np.testing.assert_allclose(probabilities, clf.predict_proba(images), atol=0.02)
    assert labels.tolist() == LABELS
    assert (
        "0.75 of the middle square" in session.get_modelmeta().custom_metadata_map["preprocessing"]
    )


def test_a_network_that_fails_is_one_line():
    assert_refused(lambda: mm.Backbone(nn.Linear(3, 4), size=8).read(pictures(1)), "does not take")
    assert_refused(lambda: open_backbone(len).read(pictures(2)), "one row of numbers")
    assert_refused(lambda: open_backbone(os.stat).read(pictures(2)), "stat fails: TypeError")


def test_a_regressor_of_many_rows_is_saved(tmp_path: Path):
    rows = np.random.default_rng(0).normal(size=(10, 8))
    fitted = mm.FewShotRegressor().fit(rows, rows[:, 0])
    fitted.save(tmp_path / "r.safetensors")
    again = mm.FewShotRegressor.load(tmp_path / "r.safetensors")
    assert np.array_equal(again.predict(rows), fitted.predict(rows))
