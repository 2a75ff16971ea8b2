"""Adapted models in other programs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

import metamirror as mm
from metamirror.estimators.export import FACTS, AdaptedModule, export
from tests.estimators.stripes import fitted, start, stripes

new, _ = stripes(classes=3, each=3, seed=1)
x = (new[:, None] / 255).astype(np.float32)


def session(path: Path) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("method", mm.METHODS)
def test_the_module_to_export_predicts_the_same(method: str):
    clf = fitted(method, calibrate=True, invert=True)
    found = AdaptedModule(clf.fitted_)(torch.from_numpy(x))
    np.testing.assert_allclose(found, clf.predict_proba(new), atol=1e-5)


def test_onnx_predicts_the_same_for_any_number_of_images(tmp_path: Path):
    # A start that was trained, with fewer classes than outputs and every part of the graph.
    clf = mm.FewShotClassifier(calibrate=True, invert=True).fit(*stripes(classes=3, each=2))
    export(clf, tmp_path / "model.onnx", "onnx")
    model = session(tmp_path / "model.onnx")
    for count in (1, 2, 9):
        (found,) = model.run(["probabilities"], {"x": x[:count]})
        assert found.shape == (count, 3)
        np.testing.assert_allclose(found, clf.predict_proba(new[:count]), atol=1e-5)
    about = model.get_modelmeta().custom_metadata_map
    assert json.loads(about["classes"]) == ["class 0", "class 1", "class 2"]
    assert json.loads(about["input"]) == ["batch", 1, 28, 28]
    assert "floats in 0..1" in about["values"]


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
