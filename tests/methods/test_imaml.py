"""iMAML: a prior and an adjoint, which the user may replace."""

from __future__ import annotations

import pytest

import metamirror as mm
from metamirror.core.adjoints import Implicit
from metamirror.core.priors import Diagonal, Isotropic
from metamirror.testing.methods import meta_gradient, relative_difference
from metamirror.testing.networks import smooth_mlp
from metamirror.training.config import RunConfig
from metamirror.training.factory import build_learner
from tests.comparing import assert_equal_learners
from tests.networks import point_tasks, shaken


def test_it_is_maml_with_a_prior_and_the_implicit_adjoint():
    specs = {"imaml:lam=2": None, "maml:adjoint=implicit:cg=5:damping=21": "isotropic:2"}
    learners = (
        mm.make_learner(spec, smooth_mlp(), steps=4, lr=0.1, prior=prior)
        for spec, prior in specs.items()
    )
    found, expected = (meta_gradient(learner, point_tasks()) for learner in learners)
    assert relative_difference(found, expected) == 0


def test_prior_and_adjoint_may_be_others():
    learner = mm.make_learner("imaml:adjoint=implicit:cg=9", smooth_mlp(), prior="diagonal:3")
    assert isinstance(learner.prior, Diagonal)
    assert learner.settings.adjoint == Implicit(cg=9, damping=21)
    learner = mm.make_learner("imaml", smooth_mlp(), adjoint=Implicit(cg=3))
    assert learner.settings.adjoint == Implicit(cg=3, damping=0)
    assert mm.make_learner("imaml", smooth_mlp(), first_order=True).settings.adjoint.name == "first"


@pytest.mark.parametrize(
    ("spec", "adjoint"),
    [
        ("imaml", Implicit(damping=21)),
        ("imaml:adjoint=implicit", Implicit(damping=21)),
        ("imaml:adjoint=implicit:damping=0", Implicit()),
        ("ibaml:adjoint=implicit:cg=3", Implicit(cg=3, damping=21)),
        ("maml:adjoint=implicit:prior=isotropic:1", Implicit()),
    ],
)
def test_its_damping_is_its_own_and_not_every_methods(spec: str, adjoint: Implicit):
    assert mm.make_learner(spec, smooth_mlp()).settings.adjoint == adjoint


@pytest.mark.parametrize("options", [{}, {"prior": "diagonal:3"}])
def test_it_is_saved_and_loaded(options: dict, tmp_path):
    learner = shaken(mm.make_learner("imaml:lam=2.5", smooth_mlp(), steps=3, lr=0.1, **options))
    mm.save(learner, tmp_path)
    loaded = mm.load(tmp_path)
    assert_equal_learners(loaded, learner, point_tasks())
    assert loaded.settings.adjoint == Implicit(damping=21)


def test_a_run_has_its_prior_and_adjoint():
    learner = build_learner(RunConfig("imaml:lam=4", data="sinusoid"), mm.tasks("sinusoid"))
    assert isinstance(learner.prior, Isotropic)
    assert learner.prior.lam == 4
    assert (learner.settings.adjoint.name, learner.settings.vectorize) == ("implicit", True)


@pytest.mark.parametrize("lam", ["0", "-1", "inf"])
def test_a_prior_that_holds_nothing_is_refused(lam: str):
    with pytest.raises(ValueError, match=r"imaml:lam is .*; it must be finite and above 0"):
        mm.make_learner(f"imaml:lam={lam}", smooth_mlp())
