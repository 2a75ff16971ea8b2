"""Learners on disk."""

from __future__ import annotations

import json

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import metamirror as mm
from metamirror.core import priors
from metamirror.testing.networks import smooth_mlp
from tests.comparing import assert_equal_learners
from tests.networks import frozen, image_tasks, plain, point_tasks, shaken, with_torch_norm

methods = pytest.mark.parametrize("method", mm.METHODS)


def saved(folder, **options) -> mm.Learner:
    learner = shaken(mm.make_learner("metasgd", smooth_mlp(), steps=2, lr=0.1, **options))
    mm.save(learner, folder)
    return learner


OPTIONS = [
    {"first_order": True},
    {"norm": "inductive"},
    {"vectorize": True},
    {"prior": "isotropic:0.1"},
    {"prior": "diagonal:0.1"},
    {"positive": True},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_options_come_back_from_disk(options: dict, tmp_path):
    learner = saved(tmp_path, **options)
    restored = mm.load(tmp_path)
    assert_equal_learners(restored, learner, point_tasks())
    assert restored.config == learner.config
    assert restored.settings == learner.settings


@methods
def test_what_is_frozen_comes_back_frozen(method: str, tmp_path):
    model = smooth_mlp()
    model.blocks[0].requires_grad_(False)
    learner = mm.make_learner(method, model, lr=0.1)
    mm.save(learner, tmp_path)
    assert_equal_learners(mm.load(tmp_path), learner, point_tasks())


def test_what_is_frozen_comes_back_frozen_in_a_model_of_ones_own(tmp_path):
    learner = mm.make_learner("maml", frozen())
    mm.save(learner, tmp_path)
    given = plain()
    assert_equal_learners(mm.load(tmp_path, model=given), learner, point_tasks())
    assert all(p.requires_grad for p in given.parameters())


def test_buffers_come_back(tmp_path):
    model = with_torch_norm()
    model(image_tasks().support.x[0])
    mm.save(mm.make_learner("maml", model), tmp_path)
    restored = mm.load(tmp_path, model=with_torch_norm()).model
    assert torch.equal(restored.its_norm.running_mean, model.its_norm.running_mean)
    assert restored.its_norm.num_batches_tracked == 1


def test_a_model_of_ones_own_must_be_given_again(tmp_path):
    mm.save(mm.make_learner("maml", plain()), tmp_path)
    with pytest.raises(ValueError, match="pass model="):
        mm.load(tmp_path)


def test_a_loss_of_ones_own_must_be_given_again(tmp_path):
    def loss(output: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(output, y, label_smoothing=0.2)

    learner = saved(tmp_path, loss=loss)
    with pytest.raises(ValueError, match="pass loss="):
        mm.load(tmp_path)
    assert_equal_learners(mm.load(tmp_path, loss=loss), learner, point_tasks())


class Cauchy(priors.Prior):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.3))

    def forward(self, phi, phi0):
        return sum((1 + ((phi[n] - phi0[n]) / self.scale) ** 2).log().sum() for n in phi)


def test_a_prior_of_ones_own_must_be_given_again(tmp_path):
    learner = saved(tmp_path, prior=Cauchy())
    with pytest.raises(ValueError, match="pass prior="):
        mm.load(tmp_path)
    assert_equal_learners(mm.load(tmp_path, prior=Cauchy()), learner, point_tasks())


def damage(folder, what: str) -> None:
    config, tensors = folder / "learner.json", folder / "learner.safetensors"
    values = json.loads(config.read_text())
    if what == "tensors cut short":
        tensors.write_bytes(tensors.read_bytes()[:100])
    elif what == "tensors empty":
        tensors.write_bytes(b"")
    elif what == "tensors missing":
        tensors.unlink()
    elif what == "another format":
        config.write_text(json.dumps(values | {"format": 99}))
    elif what == "no object":
        config.write_text("[1, 2]")
    elif what == "no JSON":
        config.write_text("{")
    elif what == "no text":
        config.write_bytes(b"\xff\xfe\x00")
    elif what == "a field missing":
        del values["lr"]
        config.write_text(json.dumps(values))
    elif what == "no config":
        config.unlink()
    elif what == "an option of the learner":
        config.write_text(json.dumps(values | {"options": {"steps": 3}}))
    elif what == "a size in words":
        config.write_text(json.dumps(values | {"model": values["model"] | {"hidden": "wide"}}))
    elif what in ("whole numbers", "two types"):
        held = safetensors.torch.load(tensors.read_bytes())
        kind = torch.int64 if what == "whole numbers" else torch.float16
        held["model.head.bias"] = held["model.head.bias"].to(kind)
        tensors.write_bytes(safetensors.torch.save(held))
    elif what == "another method":
        config.write_text(json.dumps(values | {"method": "maml", "options": {}}))
    else:
        config.write_text(json.dumps(values | {"model": values["model"] | {"hidden": [16, 8]}}))


DAMAGES = {
    "tensors cut short": "learner.safetensors is damaged",
    "tensors empty": "learner.safetensors is damaged",
    "tensors missing": "there is no .*learner.safetensors",
    "another format": "learner.json is not a learner of format 3",
    "no object": "learner.json is not a learner of format 3",
    "no JSON": "learner.json is not valid JSON",
    "no text": "learner.json is not valid JSON",
    "a field missing": r"learner.json is damaged: it lacks \['lr'\]",
    "no config": "holds no learner",
    "an option of the learner": "learner.json describes no learner",
    "a size in words": "learner.json|hidden",
    "whole numbers": "is torch.int64 in .*learner.safetensors, not torch.float32",
    "two types": "learner.safetensors is damaged: it holds both",
    "another method": "does not fit this learner.*geometry.rates",
    "another width": r"has shape \(16, 16\).*and \(8, 16\) in the learner",
}


@pytest.mark.parametrize("what", DAMAGES)
def test_a_damaged_learner_is_named(what: str, tmp_path):
    saved(tmp_path)
    damage(tmp_path, what)
    with pytest.raises(ValueError, match=DAMAGES[what]):
        mm.load(tmp_path)


def test_the_last_learner_of_a_run_is_found_from_its_folder(tmp_path):
    learner = saved(tmp_path / "last")
    assert_equal_learners(mm.load(tmp_path, which="last"), learner, point_tasks())
    assert_equal_learners(mm.load(tmp_path, which="best"), learner, point_tasks())
    with pytest.raises(ValueError, match="which is 'first'"):
        mm.load(tmp_path, which="first")


def test_only_a_learner_of_make_learner_can_be_saved(tmp_path):
    with pytest.raises(ValueError, match="make_learner"):
        mm.save(mm.Learner(smooth_mlp()), tmp_path)


def test_types_come_back_whatever_the_model_is_built_in(tmp_path):
    model = with_torch_norm().double()
    model.its_norm.running_mean = model.its_norm.running_mean.float()
    learner = mm.make_learner("maml", model)
    mm.save(learner, tmp_path)
    restored = mm.load(tmp_path, model=with_torch_norm().float())
    for (name, p), (other, q) in zip(
        learner.named_parameters(), restored.named_parameters(), strict=True
    ):
        assert (name, p.dtype) == (other, q.dtype)
        assert torch.equal(p, q)
    assert restored.model.its_norm.running_mean.dtype == torch.float32


def test_a_step_size_changed_after_building_comes_back(tmp_path):
    learner = mm.make_learner("metasgd", smooth_mlp(), lr=0.02)
    learner.configure(lr=0.1)
    mm.save(learner, tmp_path)
    assert_equal_learners(mm.load(tmp_path), learner, point_tasks())


def test_what_was_frozen_after_building_is_refused_not_lost(tmp_path):
    learner = mm.make_learner("maml", smooth_mlp())
    next(learner.model.parameters()).requires_grad_(False)
    with pytest.raises(ValueError, match="freeze it before make_learner"):
        mm.save(learner, tmp_path)
    assert not list(tmp_path.iterdir())
