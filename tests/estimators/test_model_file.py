"""Adapted models on disk: the same bits come back, and nobody's file does harm."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import metamirror as mm
from metamirror.estimators import model_file
from metamirror.storage import tensor_file
from metamirror.storage.tensor_file import DamagedFileError
from tests.estimators.stripes import fitted, start, stripes
from tests.networks import Awkward

images, labels = stripes(classes=3, each=3, seed=1)


@pytest.mark.parametrize(
    "method", [*mm.METHODS, "warpgrad:batch_norm=true", "blockiaf:scale=logistic"]
)
def test_the_same_bits_come_back(method: str, tmp_path: Path):
    clf = fitted(method, random_state=3)
    clf.save(tmp_path / "model")
    again = mm.FewShotClassifier.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict_proba(images), clf.predict_proba(images))
    assert again.predict(images).tolist() == clf.predict(images).tolist()
    for name in ("losses_", "n_steps_", "adaptation_seconds_", "temperature_"):
        assert getattr(again, name) == getattr(clf, name)
    assert again.get_params().keys() == clf.get_params().keys()


def test_it_can_be_added_to_and_fitted_anew(tmp_path: Path):
    clf = fitted(random_state=3)
    clf.save(tmp_path / "model")
    again = mm.FewShotClassifier.load(tmp_path / "model")
    for one in (clf, again):
        one.partial_fit(images, labels)
    np.testing.assert_array_equal(again.predict_proba(images), clf.predict_proba(images))
    again.fit(images, labels)
    assert len(again.support_.x) == 9


def test_numbers_of_numpy_are_numbers(tmp_path: Path):
    clf = fitted(
        steps=np.int64(2),
        lr=np.float32(0.5),
        random_state=np.int64(3),
        early_stopping=np.True_,
        calibrate=np.False_,
        invert=np.True_,
    )
    clf.save(tmp_path / "model")
    again = mm.FewShotClassifier.load(tmp_path / "model")
    assert (again.steps, again.lr, again.random_state) == (2, 0.5, 3)
    assert (again.early_stopping, again.calibrate, again.invert) == (True, False, True)


@pytest.mark.filterwarnings("ignore:the examples do not look like")
def test_the_name_of_a_shipped_start_stays(tmp_path: Path):
    clf = mm.FewShotClassifier("glyphs-maml", steps=1, invert=True, calibrate=True)
    clf.fit(images, labels).save(tmp_path / "model")
    again = mm.FewShotClassifier.load(tmp_path / "model")
    assert again.get_params() == clf.get_params()
    assert again.temperature_ == clf.temperature_ != 1.0
    np.testing.assert_array_equal(again.predict_proba(images), clf.predict_proba(images))


@pytest.mark.parametrize(
    "names", [["b", "a", "\0"], [1, 2, 10**30], [0.1, 2.5, 1e300], [None, "none", True]], ids=str
)
def test_labels_come_back_as_they_were(names: list, tmp_path: Path):
    clf = mm.FewShotClassifier(start()).fit(images[::3], names)
    clf.save(tmp_path / "model")
    again = mm.FewShotClassifier.load(tmp_path / "model")
    assert again.classes_.tolist() == clf.classes_.tolist()
    assert [type(label) for label in again.classes_.tolist()] == [
        type(label) for label in clf.classes_.tolist()
    ]


def test_labels_that_json_cannot_hold_are_refused(tmp_path: Path):
    clf = mm.FewShotClassifier(start()).fit(images[::3], [("a", 1), ("a", 2), ("a", 3)])
    with pytest.raises(ValueError, match=r"\('a', 1\) is a tuple.*words or numbers"):
        clf.save(tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_what_a_file_cannot_hold_is_refused(tmp_path: Path):
    own_loss = mm.FewShotClassifier(start(loss=torch.nn.functional.cross_entropy))
    with pytest.raises(ValueError, match="a loss of your own"):
        own_loss.fit(images, labels).save(tmp_path / "model")
    generator = fitted(random_state=np.random.default_rng(0))
    with pytest.raises(ValueError, match=r"random_state.*cannot hold"):
        generator.save(tmp_path / "model")


def test_a_model_of_ones_own_class_is_handed_in_again(tmp_path: Path):
    torch.manual_seed(0)
    model = Awkward()
    x = torch.rand(6, 6)
    learner = mm.make_learner("maml", model.float(), lr=0.1)
    clf = mm.FewShotClassifier(learner).fit(x, [0, 1] * 3)
    clf.save(tmp_path / "model")
    with pytest.raises(ValueError, match="model of the user's own: pass model="):
        mm.FewShotClassifier.load(tmp_path / "model")
    with pytest.raises(DamagedFileError, match="or made with another model"):
        mm.FewShotClassifier.load(tmp_path / "model", model=mm.models.MLP(6, 3))
    again = mm.FewShotClassifier.load(tmp_path / "model", model=Awkward().float())
    np.testing.assert_array_equal(again.predict_proba(x), clf.predict_proba(x))


def test_a_regressor_comes_back_as_one(tmp_path: Path):
    x = np.linspace(-1, 1, 10)[:, None]
    learner = mm.make_learner("metasgd", mm.models.MLP(1, 1), lr=0.01)
    regressor = mm.FewShotRegressor(learner).fit(x, x[:, 0])
    regressor.save(tmp_path / "model")
    again = mm.FewShotRegressor.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict(x), regressor.predict(x))
    assert again.n_features_in_ == 1
    with pytest.raises(ValueError, match="holds a FewShotRegressor"):
        mm.FewShotClassifier.load(tmp_path / "model")


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch):
    path = tmp_path / "model"
    fitted().save(path)
    before = path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        fitted(classes=2).save(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


# Files from elsewhere


@pytest.fixture(scope="module")
def content(tmp_path_factory) -> bytes:
    path = tmp_path_factory.mktemp("model") / "model"
    fitted().save(path)
    return path.read_bytes()


def changed(content: bytes, change) -> bytes:
    """The file of someone who knows how to make its checksum."""
    tensors, facts = tensor_file.unpack(content, "it")
    change(tensors, facts)
    return tensor_file.pack(tensors, facts)


def load(content: bytes, folder: Path, kind: type = mm.FewShotClassifier) -> object:
    (folder / "hostile").write_bytes(content)
    return kind.load(folder / "hostile")


def learner(**wrong):
    return lambda tensors, facts: facts["learner"].update(wrong)


def facts(**wrong):
    return lambda tensors, facts: facts.update(wrong)


def params(**wrong):
    return lambda tensors, facts: facts["params"].update(wrong)


def tensor(name: str, change):
    return lambda tensors, facts: tensors.update({name: change(tensors[name])})


HUGE = {"name": "conv4", "ways": 5, "channels": 1, "image_size": 28, "width": 10**6}
DEEP = {"name": "mlp", "inputs": 784, "outputs": 5, "hidden": [40] * 100_000}
HOSTILE = {
    "no model": learner(model="conv4"),
    "unknown model": learner(model={"name": "conv5"}),
    "a network beyond memory": learner(model=HUGE),
    "a network beyond patience": learner(model=DEEP),
    "unknown method": learner(method="magic"),
    "another method": learner(method="metasgd"),
    "odd options": learner(options={"x": 1}),
    "endless steps": learner(steps=-1),
    "lr": learner(lr="fast"),
    "no learner": facts(learner=None),
    "no classes": facts(classes=None),
    "too many classes": facts(classes=list("abcdef")),
    "too few classes": facts(classes=["a", "b"]),
    "a class twice": facts(classes=["a", "a", "b"]),
    "classes without a hash": facts(classes=[[], {}, "a"]),
    "a kind of its own": facts(kind="os.system"),
    "another kind": facts(kind="regressor"),
    "no parameters": facts(params=[]),
    "losses": facts(losses=["a"]),
    "temperature": facts(temperature="hot"),
    "no temperature": facts(temperature=0.0),
    "an accuracy above all": facts(held_out_accuracy=7.0),
    "tol": params(tol=[]),
    "a size beyond numbers": learner(model={**HUGE, "width": 10**30}),
    "start": params(start=["x"]),
    "NaN": tensor("adapted.head.bias", lambda t: t * float("nan")),
    "another shape": tensor("adapted.head.bias", lambda t: t[:2]),
    "whole numbers": tensor("start.model.head.bias", lambda t: t.long()),
    "negative variance": tensor("statistics.0.var.blocks.0.norm", lambda t: t - 1e6),
    "statistics of another shape": tensor("statistics.0.mean.blocks.0.norm", lambda t: t[:, :3]),
    "labels": tensor("support.y", lambda y: y + 7),
    "examples": tensor("support.x", lambda x: x[:, :, :7]),
    "no examples": tensor("support.x", lambda x: x[:0]),
    "a missing tensor": lambda tensors, facts: tensors.pop("adapted.head.weight"),
    "missing statistics": lambda tensors, facts: tensors.pop("statistics.0.var.blocks.0.norm"),
    "no statistics": lambda tensors, facts: [
        tensors.pop(name) for name in list(tensors) if name.startswith("statistics")
    ],
    "a tensor too many": lambda tensors, facts: tensors.update({"start.more": torch.ones(1)}),
    "long words": lambda tensors, facts: facts.update(junk="x" * model_file.MOST_WORDS),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_file_that_does_not_fit_is_damaged(case: str, content: bytes, tmp_path: Path):
    kind = mm.FewShotRegressor if case == "another kind" else mm.FewShotClassifier
    with pytest.raises(DamagedFileError, match="hostile is damaged"):
        load(changed(content, HOSTILE[case]), tmp_path, kind)


def test_deep_json_is_damage(content: bytes, tmp_path: Path, monkeypatch):
    tensors, _ = tensor_file.unpack(content, "it")
    monkeypatch.setattr(json, "dumps", lambda *_, **__: "[" * 200_000)
    packed = tensor_file.pack(tensors, {})
    monkeypatch.undo()
    with pytest.raises(DamagedFileError):
        load(packed, tmp_path)


def test_the_device_is_the_readers_choice(content: bytes, tmp_path: Path):
    (tmp_path / "model").write_bytes(content)
    with pytest.raises(ValueError, match="device is 'cuda:99', which this machine does not have"):
        mm.FewShotClassifier.load(tmp_path / "model", device="cuda:99")
    assert mm.FewShotClassifier.load(tmp_path / "model", device="cpu").device == "cpu"


def test_what_is_no_model_is_named(content: bytes, tmp_path: Path, monkeypatch):
    with pytest.raises(ValueError, match="there is no"):
        mm.FewShotClassifier.load(tmp_path / "nothing")
    with pytest.raises(ValueError, match="is a folder"):
        mm.FewShotClassifier.load(tmp_path)
    with pytest.raises(ValueError, match="not an adapted model of format 1"):
        load(tensor_file.pack({"x": torch.ones(1)}, {"format": 2}), tmp_path)
    monkeypatch.setattr(model_file, "MOST_BYTES", 1000)
    with pytest.raises(DamagedFileError, match="more than 1,000 bytes"):
        load(content, tmp_path)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damage_is_noticed(content: bytes, data, tmp_path: Path):
    place = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        broken = content[:place]
    else:
        broken = bytearray(content)
        broken[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(ValueError, match="hostile"):
        load(bytes(broken), tmp_path)


def test_a_model_from_before_there_was_a_held_out_accuracy_loads(tmp_path: Path):
    fitted().save(tmp_path / "model")
    tensors, facts = tensor_file.read(tmp_path / "model")
    assert facts.pop("held_out_accuracy") is not None
    (tmp_path / "model").write_bytes(tensor_file.pack(tensors, facts))
    assert mm.FewShotClassifier.load(tmp_path / "model").held_out_accuracy_ is None


def test_a_model_of_an_earlier_version_is_not_called_damaged(tmp_path: Path):
    fitted("gradnet").save(tmp_path / "model")
    tensors, facts = tensor_file.read(tmp_path / "model")
    facts["learner"]["format"] = 2
    (tmp_path / "model").write_bytes(tensor_file.pack(tensors, facts))
    with pytest.raises(ValueError, match=r"cannot be read: .*train it again") as caught:
        mm.FewShotClassifier.load(tmp_path / "model")
    assert not isinstance(caught.value, DamagedFileError)
