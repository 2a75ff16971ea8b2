"""Adapted models in other programs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFilter

import metamirror as mm
from metamirror.estimators.export import FACTS, AdaptedModule, export
from metamirror.estimators.inputs.images import Images
from metamirror.estimators.inputs.raw import RawImages
from tests.estimators.stripes import fitted, start, stripes

new, _ = stripes(classes=3, each=3, seed=1)
x = np.repeat(new[..., None], 3, axis=3)


def photograph(width: int, height: int, seed: int = 0) -> Image.Image:
    """Smooth colours with edges and some noise, as a camera would give."""
    random = np.random.default_rng(seed)
    image = Image.fromarray(random.integers(0, 256, (7, 9, 3), dtype=np.uint8))
    pixels = np.asarray(image.resize((width, height), Image.Resampling.BICUBIC), np.float32)
    pixels[height // 3 :, : width // 2] += 60
    pixels += random.normal(scale=4, size=pixels.shape)
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).filter(ImageFilter.SHARPEN)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 300), st.integers(1, 300), st.sampled_from([1, 3]), st.integers(8, 90))
def test_the_graph_reads_an_image_as_the_estimator_does(width, height, channels, size):
    image = photograph(width, height)
    raw = torch.from_numpy(np.array(image)[None])
    for invert in (False, True):
        found = RawImages(channels, size, invert)(raw)
        shades = 255 * (found - Images(channels, size, invert).read([image])).abs()
        if height <= width:
            # Where a sum is a half but for rounding, Pillow's integers go the other way.
            assert shades.max() < 1.01
            assert (shades > 0.5).float().mean() < 0.05
        else:
            # From version 13 Pillow may begin with the columns, and rounds between the passes.
            assert shades.mean() < 1.5


def test_an_image_of_the_right_size_keeps_every_bit():
    image = photograph(84, 84)
    found = RawImages(3, 84, False)(torch.from_numpy(np.array(image)[None]))
    torch.testing.assert_close(found, Images(3, 84).read([image]), rtol=0, atol=1e-7)


def session(path: Path) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("method", mm.METHODS)
def test_the_module_to_export_predicts_the_same(method: str):
    clf = fitted(method, calibrate=True, invert=True)
    found = AdaptedModule(clf.fitted_)(torch.from_numpy(x))
    np.testing.assert_allclose(found, clf.predict_proba(new), atol=1e-5)


@pytest.mark.filterwarnings("ignore::metamirror.estimators.familiarity.UnfamiliarExamplesWarning")
def test_onnx_predicts_the_same_for_any_number_of_images_of_any_size(tmp_path: Path):
    # A start that was trained, with fewer classes than outputs and every part of the graph.
    clf = mm.FewShotClassifier(calibrate=True, invert=True).fit(*stripes(classes=3, each=2))
    export(clf, tmp_path / "model.onnx", "onnx")
    model = session(tmp_path / "model.onnx")
    for count in (1, 2, 9):
        found, labels = model.run(["probabilities", "label"], {"images": x[:count]})
        assert found.shape == (count, 3)
        np.testing.assert_allclose(found, clf.predict_proba(new[:count]), atol=1e-5)
        assert labels.tolist() == clf.predict(new[:count]).tolist()
    for width, height in ((640, 480), (31, 200), (1, 1)):
        images = [photograph(width, height, seed) for seed in range(3)]
        (found,) = model.run(["probabilities"], {"images": np.stack(images)})
        np.testing.assert_allclose(found, clf.predict_proba(images), atol=0.01)
    about = model.get_modelmeta().custom_metadata_map
    assert json.loads(about["classes"]) == ["class 0", "class 1", "class 2"]
    assert json.loads(about["input"]) == ["batch", "height", "width", 3]
    assert "bytes in 0..255" in about["values"]
    assert "28 x 28 pixels in grey, dark for light" in about["preprocessing"]


def test_a_start_for_colour_and_labels_that_are_numbers(tmp_path: Path):
    torch.manual_seed(0)
    learner = mm.make_learner("protonet", mm.models.Conv4(5, 3, 32, 8))
    images = [photograph(60, 40, seed) for seed in range(7)]
    clf = mm.FewShotClassifier(learner).fit(images, range(7))
    export(clf, tmp_path / "model.onnx", "onnx")
    found, labels = session(tmp_path / "model.onnx").run(None, {"images": np.stack(images)})
    np.testing.assert_allclose(found, clf.predict_proba(images), atol=0.01)
    assert labels.tolist() == [str(i) for i in range(7)]


def test_a_regressor_becomes_onnx(tmp_path: Path):
    torch.manual_seed(0)
    learner = mm.make_learner("metasgd", mm.models.MLP(1, 1), lr=0.01)
    rows = np.linspace(-1, 1, 10, dtype=np.float32)[:, None]
    regressor = mm.FewShotRegressor(learner).fit(rows, rows**2)
    export(regressor, tmp_path / "model.onnx", "onnx")
    (found,) = session(tmp_path / "model.onnx").run(["values"], {"x": rows})
    np.testing.assert_allclose(found, regressor.predict(rows), atol=1e-5)


def test_torchs_program_predicts_the_same(tmp_path: Path):
    clf = fitted("warpgrad:batch_norm=true")
    export(clf, tmp_path / "model.pt2", "torch")
    about = {FACTS: ""}
    program = torch.export.load(tmp_path / "model.pt2", extra_files=about).module()
    for count in (1, 9):
        found = program(torch.from_numpy(x[:count]))
        np.testing.assert_allclose(found, clf.predict_proba(new[:count]), atol=1e-5)
    image = photograph(50, 70)
    found = program(torch.from_numpy(np.array(image)[None]))
    np.testing.assert_allclose(found, clf.predict_proba([image]), atol=0.01)
    assert json.loads(about[FACTS])["classes"] == clf.classes_.tolist()


def test_without_the_extra_the_way_out_is_named(tmp_path: Path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ValueError, match=r"pip install 'metamirror\[export\]'"):
        export(fitted(), tmp_path / "model.onnx", "onnx")


def test_mistakes_are_named(tmp_path: Path):
    with pytest.raises(ValueError, match="format is 'tflite'; choose from onnx, torch"):
        export(fitted(), tmp_path / "model", "tflite")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="not fitted yet"):
        export(mm.FewShotClassifier(start()), tmp_path / "model", "onnx")
    assert not list(tmp_path.iterdir())
