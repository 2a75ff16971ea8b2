"""Explicit priors of the lower level."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import metamirror as mm
from metamirror.core import priors
from metamirror.testing.methods import check_learner_gradient, learned
from metamirror.testing.networks import smooth_mlp
from metamirror.training.config import RunConfig
from metamirror.training.factory import build_learner
from tests.comparing import ByHand, assert_same_params, one
from tests.networks import point_tasks, shaken

methods = pytest.mark.parametrize("method", mm.METHODS)


LAM = 0.7


def prior_learner(spec: str, method: str = "maml", **options) -> mm.Learner:
    return mm.make_learner(method, smooth_mlp(), steps=3, lr=0.2, prior=spec, **options)


def test_isotropic_prior_pulls_towards_the_start():
    support = one(point_tasks().support)
    hand = ByHand(
        smooth_mlp(),
        support,
        steps=3,
        lr=0.2,
        loss=F.cross_entropy,
        pull=lambda name, moved: LAM * moved,
    )
    adapted = prior_learner(f"isotropic:{LAM}").adapt(support)
    assert_same_params(adapted.params, hand.params)
    assert adapted.path.losses.tolist() == pytest.approx(hand.losses, rel=1e-12)
    assert adapted.path.grad_norms.tolist() == pytest.approx(hand.grad_norms, rel=1e-10)


def test_diagonal_prior_pulls_each_parameter_by_its_own_precision():
    support = one(point_tasks().support)
    learner = prior_learner(f"diagonal:{LAM}")
    for p in learner.prior.parameters():
        assert torch.allclose(p.exp(), torch.tensor(LAM, dtype=torch.float64))
    shaken(learner.prior, size=0.5)
    precisions = {
        name: p.detach().exp()
        for name, p in zip(learner.adapts, learner.prior.parameters(), strict=True)
    }
    hand = ByHand(
        smooth_mlp(),
        support,
        steps=3,
        lr=0.2,
        loss=F.cross_entropy,
        pull=lambda name, moved: precisions[name] * moved,
    )
    assert_same_params(learner.adapt(support).params, hand.params)


@pytest.mark.parametrize("vectorize", [False, True])
@pytest.mark.parametrize("method", ["maml", "mtnet:masks=false", "blockiaf", "anil"])
@pytest.mark.parametrize("spec", ["isotropic:0.7", "diagonal:0.7"])
def test_meta_gradient_under_a_prior_equals_finite_differences(
    spec: str, method: str, vectorize: bool
):
    learner = shaken(prior_learner(spec, method, vectorize=vectorize))
    check_learner_gradient(learner, point_tasks())


def test_meta_gradient_of_the_precisions_equals_finite_differences():
    learner = shaken(prior_learner("diagonal:0.7"))
    assert len([name for name in learned(learner) if name.startswith("prior.")]) == 6
    check_learner_gradient(learner, point_tasks())


def test_a_prior_covers_exactly_what_adapts():
    learner = prior_learner("diagonal:1", "anil")
    assert learner.prior.names == ["head.weight", "head.bias"] == learner.adapts


def test_a_prior_can_be_given_as_an_object():
    support = one(point_tasks().support)
    by_word, by_object = (
        mm.make_learner("maml", smooth_mlp(), steps=3, lr=0.2, prior=prior).adapt(support)
        for prior in ("isotropic:0.1", priors.Isotropic(0.1))
    )
    assert_same_params(by_object.params, by_word.params)


BAD_PRIORS = {
    "isotropic": "'isotropic'.*WEIGHT",
    "isotropic:heavy": "'isotropic:heavy'.*WEIGHT",
    "laplace:0.1": "'laplace:0.1'.*isotropic.*diagonal",
    "isotropic:-1": "lam is -1.0",
    "isotropic:nan": "lam is nan",
    "isotropic:inf": "lam is inf",
    "diagonal:0": "lam is 0.0.*above 0",
    "": "prior is ''",
}


@pytest.mark.parametrize("spec", BAD_PRIORS)
def test_a_bad_prior_is_named(spec: str):
    with pytest.raises(ValueError, match=BAD_PRIORS[spec]):
        prior_learner(spec)


def test_a_prior_may_follow_a_method_and_goes_before_that_of_the_run():
    spec = "gradnet:adjoint=implicit:prior=isotropic:2:cg=3"
    learner = mm.make_learner(spec, smooth_mlp())
    assert isinstance(learner.prior, priors.Isotropic)
    assert (learner.prior.lam, learner.settings.adjoint.cg) == (2, 3)
    config = RunConfig("metasgd:prior=diagonal:0.5", data="sinusoid", prior="isotropic:1")
    assert build_learner(config, mm.tasks("sinusoid")).prior.spec == "diagonal:0.5"
    with pytest.raises(ValueError, match="write isotropic:WEIGHT"):
        mm.make_learner("maml:prior=isotropic:adjoint=first", smooth_mlp())
    with pytest.raises(ValueError, match="given twice"):
        mm.make_learner("maml:prior=isotropic:1", smooth_mlp(), prior="isotropic:1")
