"""Networks from files inside of exported models, and in pickles."""

from __future__ import annotations

import copy
import json
import pickle
import shutil
import warnings
from pathlib import Path

import numpy as np
import onnx
import onnx.version_converter
import onnxruntime
import pytest
import torch
from torch import nn

import metamirror as mm
from metamirror.estimators.backbones import onnx_merge
from metamirror.estimators.export import export
from tests.estimators.test_backbones import LABELS, Body, onnx_file, pictures, pt2_file
from tests.refusals import assert_refused


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METAMIRROR_HOME", str(tmp_path / "home"))


@pytest.fixture
def body() -> Body:
    torch.manual_seed(0)
    return Body()


class ChannelsLast(nn.Module):
    """Takes and gives the channels as the last of its axes."""

    def __init__(self, body: nn.Module):
        super().__init__()
        self.body = body

    def forward(self, x):
        return self.body(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


def channels_last(body: Body, path: Path) -> Path:
    """In half precision, too."""
    dims = ({0: torch.export.Dim("height", min=1)},)
    examples = torch.zeros(2, 24, 24, 3).half()
    with warnings.catch_warnings(action="ignore"):
        program = torch.onnx.export(
            ChannelsLast(body).eval().half(),
            (examples,),
            dynamic_shapes=dims,
            dynamo=True,
            verbose=False,
        )
    program.save(str(path))
    return path


def parsed(path: Path, text: str) -> Path:
    onnx.save(onnx.parser.parse_model(text), path)
    return path


def old(path: Path) -> Path:
    """Of another version, with a function, two outputs, and names that ours have, too."""
    return parsed(
        path,
        """<ir_version: 8, opset_import: ["": 13, "own": 1]>
        images (float[height, 3, 24, 24] images)
            => (float[height, 3, 24, 24] probabilities, float[height, 3, 24, 24] label)
        {
            likeliest = own.Twice(images)
            probabilities = Relu(likeliest)
            label = Neg(probabilities)
        }
        <domain: "own", opset_import: ["": 13]>
        Twice (x) => (y) { y = Add(x, x) }""",
    )


def weights_as_inputs(path: Path) -> Path:
    """As files of the third version of ONNX are, for one image at a time."""
    text = """<ir_version: 3, opset_import: ["": 9]>
        body (float[1, 3, 24, 24] x, float[6, 3, 5, 5] w) => (float[1, 6, 20, 20] y)
        { y = Conv(x, w) }"""
    model = onnx.parser.parse_model(text)
    weights = np.random.default_rng(0).normal(size=(6, 3, 5, 5)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    onnx.save(model, path)
    return path


def pixels_of(images: list) -> np.ndarray:
    return np.stack([np.asarray(image) for image in images])


def opened(path: Path) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


NETWORKS = {
    "any batch": (onnx_file, ":crop=0.75:mean=0.1/0.2/0.3:std=0.5"),
    "two at a time": (lambda body, path: onnx_file(body, path, None), ":flip=true"),
    "channels last, half precision": (channels_last, ":flip=true"),
    "old": (lambda _, path: old(path), ""),
    "weights as inputs": (lambda _, path: weights_as_inputs(path), ""),
}


@pytest.mark.parametrize("kind", NETWORKS)
def test_an_exported_model_has_its_onnx_backbone_inside(kind, body, tmp_path: Path, capsys):
    write, options = NETWORKS[kind]
    path = write(body, tmp_path / "body.onnx")
    clf = mm.FewShotClassifier(backbone=f"{path}{options}").fit(pictures(), LABELS)
    export(clf, tmp_path / "mine.onnx", "onnx")
    assert "note" not in capsys.readouterr().err
    path.unlink()
    model = opened(tmp_path / "mine.onnx")
    assert [(i.name, i.type, i.shape) for i in model.get_inputs()] == [
        ("images", "tensor(uint8)", ["batch", "height", "width", 3])
    ]
    assert [(o.name, o.shape) for o in model.get_outputs()] == [
        ("probabilities", ["batch", 3]),
        ("label", ["batch"]),
    ]
    for count, size in ((12, (40, 30)), (1, (24, 24)), (5, (97, 64)), (2, (31, 77))):
        images = pictures(count, size)
        found, labels = model.run(None, {"images": pixels_of(images)})
        # Pillow rounds otherwise where an image is taller than wide.
        atol = 0.01 if size[1] > size[0] else 1e-4
        np.testing.assert_allclose(found, clf.predict_proba(images), atol=atol)
        assert labels.tolist() == clf.predict(images).tolist() == LABELS[:count]
    about = model.get_modelmeta().custom_metadata_map
    assert json.loads(about["classes"]) == ["blue", "green", "red"]
    assert "24 x 24 pixels" in about["preprocessing"]
    assert f"the features of {path}" in about["preprocessing"]


def test_a_regressor_and_weights_beside_the_file(body: Body, tmp_path: Path):
    onnx_file(body, tmp_path / "one.onnx")
    onnx.save(
        onnx.load(tmp_path / "one.onnx"),
        tmp_path / "body.onnx",
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=0,
    )
    images, values = pictures(), np.linspace(-50, 900, 12)
    regressor = mm.FewShotRegressor(backbone=str(tmp_path / "body.onnx")).fit(images, values)
    export(regressor, tmp_path / "mine.onnx", "onnx")
    (found,) = opened(tmp_path / "mine.onnx").run(["values"], {"images": pixels_of(images)})
    np.testing.assert_allclose(found[:, 0], regressor.predict(images), rtol=1e-3)


def in_words(clf: mm.FewShotClassifier, path: Path, form: str, capsys) -> str:
    """What is said of a model that takes features, which is right for them."""
    capsys.readouterr()
    export(clf, path, form)
    rows, expected = clf.support_.x, clf.predict_proba(pictures())
    if form == "onnx":
        (found,) = opened(path).run(["probabilities"], {"x": rows.numpy()})
    else:
        found = torch.export.load(path).module()(rows)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    return capsys.readouterr().err


def test_what_cannot_be_merged_takes_features_and_says_why(
    body, tmp_path: Path, capsys, monkeypatch
):
    path, out = onnx_file(body, tmp_path / "body.onnx"), tmp_path / "mine"
    clf = mm.FewShotClassifier(backbone=str(path)).fit(pictures(), LABELS)
    words = in_words(clf, out, "torch", capsys)
    assert f"takes features of {path}, and no images (an ONNX network fits into ONNX" in words
    with monkeypatch.context() as patch:
        patch.setattr(onnx_merge, "CLOSE", -1)
        assert "predicts something else): run that before it" in in_words(clf, out, "onnx", capsys)
    shutil.move(path, tmp_path / "elsewhere.onnx")
    assert "No such file" in in_words(clf, out, "onnx", capsys)
    onnx_file(Body(), path)
    words = in_words(clf, out, "onnx", capsys)
    assert "(body.onnx has changed since)" in words
    assert words.count("\n") == 1


def test_versions_that_cannot_be_converted_are_named(tmp_path: Path, capsys, monkeypatch):
    clf = mm.FewShotClassifier(backbone=str(old(tmp_path / "body.onnx"))).fit(pictures(), LABELS)

    def refuse(model, version):
        raise RuntimeError("no adapter")

    monkeypatch.setattr(onnx.version_converter, "convert_version", refuse)
    words = in_words(clf, tmp_path / "mine.onnx", "onnx", capsys)
    assert "(its operations, of opset 13, do not become those of opset" in words


def test_a_program_of_torch_is_exported_and_pickled_by_its_file(body: Body, tmp_path: Path):
    path, images = pt2_file(body, tmp_path / "body.pt2"), pictures()
    clf = mm.FewShotClassifier(backbone=str(path)).fit(images, LABELS)
    expected = clf.predict_proba(images)
    export(clf, tmp_path / "mine.onnx", "onnx")
    (found,) = opened(tmp_path / "mine.onnx").run(["probabilities"], {"images": pixels_of(images)})
    np.testing.assert_allclose(found, expected, atol=1e-4)
    export(clf, tmp_path / "mine.pt2", "torch")
    found = torch.export.load(tmp_path / "mine.pt2").module()(torch.from_numpy(pixels_of(images)))
    np.testing.assert_allclose(found, expected, atol=1e-4)
    content = pickle.dumps(clf)
    for again in (pickle.loads(content), copy.deepcopy(clf)):
        # Other images than those whose features are kept.
        assert np.array_equal(
            again.predict_proba(pictures(6, (50, 35))), clf.predict_proba(pictures(6, (50, 35)))
        )
    pt2_file(Body(), path)
    assert_refused(lambda: pickle.loads(content), "has changed since: fit again")
