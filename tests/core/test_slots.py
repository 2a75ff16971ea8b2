"""The slots of a learner filled with parts of the user's own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch

import metamirror as mm
from metamirror.core.adjoints import ADJOINTS, Adjoint
from metamirror.core.geometry import Geometry, PointState, moved
from metamirror.core.start import Start
from metamirror.methods import maml
from metamirror.testing.methods import meta_gradient, relative_difference
from metamirror.testing.networks import smooth_mlp
from metamirror.training.config import RunConfig
from metamirror.training.factory import build_learner
from tests.comparing import one
from tests.networks import image_tasks, point_tasks


class HeadAtClassMeans(Start):
    """A start that depends on the task: the head's bias is how often each class occurs."""

    shared = False

    def forward(self, theta, lower):
        counts = torch.bincount(lower.batch.y, minlength=len(theta["head.bias"]))
        return {**theta, "head.bias": theta["head.bias"] + counts.to(theta["head.bias"])}


@pytest.mark.parametrize("method", ["maml", "metasgd", "blockiaf", "gradnet"])
def test_a_start_may_depend_on_the_task(method: str):
    built = mm.make_learner(method, smooth_mlp(), steps=0)
    learner = mm.Learner(built.model, built.geometry, start=HeadAtClassMeans(), steps=0)
    support = one(point_tasks().support)
    plain, own = (each.adapt(support).params["head.bias"] for each in (built, learner))
    torch.testing.assert_close(own - plain, torch.bincount(support.y).to(plain))
    grads = meta_gradient(learner, point_tasks())
    assert float(grads["model.head.bias"].abs().max()) > 0


@dataclass(frozen=True)
class Truncated(Adjoint):
    """The outer level sees the last step alone."""

    name = "truncated"

    def step(self, step, state, phi0, k, *, through):
        state, *rest = step(state, phi0, k)
        if k < 2:
            state = PointState({name: z.detach() for name, z in state.z.items()})
        return state, *rest


def test_an_adjoint_may_cut_the_path():
    learner = mm.make_learner("maml", smooth_mlp(), steps=3, lr=0.1, adjoint=Truncated())
    first = mm.make_learner("maml", smooth_mlp(), steps=3, lr=0.1, adjoint="first")
    tasks = point_tasks()
    assert learner.meta_loss(tasks).item() == first.meta_loss(tasks).item()
    # The start is reached through every step but the cut ones: not at all.
    assert meta_gradient(first, tasks)["model.head.weight"].abs().max() > 0
    with pytest.raises(RuntimeError, match="does not require grad"):
        meta_gradient(learner, tasks)


@dataclass(frozen=True)
class StraightThrough(Adjoint):
    """The derivative of phi^(K) by phi^(0) is taken for the identity."""

    name = "straight through"
    builds_graph = False
    attaches = True

    def attach(self, phi, phi0, lower, replay):
        return {name: p + (phi0[name] - phi0[name].detach()) for name, p in phi.items()}


def test_an_adjoint_may_attach_the_end_of_the_path_to_its_start():
    """For gradient descent that is the first-order gradient, found without a graph of the path."""
    tasks = point_tasks()
    found, expected = (
        meta_gradient(mm.make_learner("maml", smooth_mlp(), steps=3, lr=0.1, adjoint=a), tasks)
        for a in (StraightThrough(), "first")
    )
    assert relative_difference(found, expected) < 1e-12


def test_an_adjoint_has_a_short_form_and_may_follow_the_key():
    tasks = point_tasks()
    short, keyword, word = (
        meta_gradient(mm.make_learner(spec, smooth_mlp(), steps=2, lr=0.1, **options), tasks)
        for spec, options in (
            ("metasgd", {"first_order": True}),
            ("metasgd", {"adjoint": "first"}),
            ("metasgd:adjoint=first", {}),
        )
    )
    assert relative_difference(short, keyword) == relative_difference(short, word) == 0


@pytest.mark.parametrize(
    ("spec", "options", "words"),
    [
        ("maml:adjoint=forward", {}, "adjoint is 'forward'; choose from unrolled, first"),
        ("maml", {"first_order": True, "recompute": True}, "adjoint is first: give one of them"),
        ("maml", {"recompute": True, "vectorize": True}, "rematerialised adjoint"),
    ],
)
def test_adjoints_that_do_not_go_together_are_refused(spec: str, options: dict, words: str):
    with pytest.raises(ValueError, match=words):
        mm.make_learner(spec, smooth_mlp(), **options)


class Scheduled(Geometry[PointState]):
    """Gradient descent whose steps shrink as 1 / (k + 1); it notes what it sees."""

    seen: ClassVar[list[tuple[int, float]]] = []

    def begin(self, theta, prepared, noise):
        return PointState(theta)

    def primal(self, state):
        return state.z

    def step(self, state, grad, *, lr, loss, k):
        self.seen.append((k, float(loss)))
        return PointState(moved(state.z, grad, lr / (k + 1)))


def test_a_geometry_sees_the_loss_and_the_number_of_the_step():
    learner = mm.Learner(smooth_mlp(), Scheduled(), steps=3, lr=0.1)
    support = one(point_tasks().support)
    Scheduled.seen.clear()
    adapted = learner.adapt(support)
    assert [k for k, _ in Scheduled.seen] == [0, 1, 2]
    assert [loss for _, loss in Scheduled.seen] == pytest.approx(adapted.path.losses.tolist())
    *_, last = learner.adaptations(support)
    for name, phi in adapted.params.items():
        assert torch.equal(last.params[name], phi)


def test_a_method_may_have_defaults_which_the_user_overrides(monkeypatch):
    method = replace(maml.METHOD, key="mine", defaults={"steps": 2, "norm": "inductive"})
    monkeypatch.setitem(mm.METHODS, "mine", method)
    assert mm.make_learner("mine", smooth_mlp()).settings.norm == "inductive"
    assert mm.make_learner("mine", smooth_mlp(), steps=7).steps == 7


def test_a_method_may_be_its_prior_and_its_adjoint_in_training_too(monkeypatch):
    defaults = {"prior": "isotropic:2.0", "adjoint": "first"}
    monkeypatch.setitem(mm.METHODS, "mine", replace(maml.METHOD, key="mine", defaults=defaults))
    config = RunConfig("mine", data="sinusoid")
    learner = build_learner(config, mm.tasks("sinusoid"))
    assert learner.prior.lam == 2.0
    assert learner.settings.adjoint.name == "first"
    assert build_learner(replace(config, prior="isotropic:1"), mm.tasks("sinusoid")).prior.lam == 1


@dataclass(frozen=True)
class Blended(Adjoint):
    """Stands for an adjoint with numbers of its own."""

    name = "blended"
    share: float = 0.5
    terms: int = 3


def test_an_adjoint_of_ones_own_is_saved_with_its_numbers(monkeypatch, tmp_path):
    monkeypatch.setitem(ADJOINTS, "blended", Blended)
    learner = mm.make_learner("maml", smooth_mlp(), adjoint="blended:share=0.25")
    assert learner.settings.adjoint == Blended(share=0.25)
    mm.save(learner, tmp_path)
    assert mm.load(tmp_path).settings.adjoint == Blended(share=0.25)
    with pytest.raises(ValueError, match="adjoint blended has no option 'shre'"):
        mm.make_learner("maml", smooth_mlp(), adjoint="blended:shre=1")


OPTIMIZERS = {
    "plain": lambda p: torch.optim.Adam(p, lr=1e-2, foreach=False),
    "foreach": lambda p: torch.optim.Adam(p, lr=1e-2, foreach=True),
    "fused": lambda p: torch.optim.Adam(p, lr=1e-2, fused=True),
    "SGD": lambda p: torch.optim.SGD(p, lr=1e-2),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("vectorize", [False, True])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_gradients_have_the_strides_of_their_parameters(layout, vectorize, optimizer):
    """Fused optimisers walk memory, and apply a gradient of other strides in the wrong order."""
    torch.manual_seed(0)
    model = mm.models.Conv4(3, 1, 16, 4).double().to(memory_format=layout)
    learner = mm.make_learner("metasgd", model, steps=1, lr=0.1, vectorize=vectorize)
    parameters = [p for p in learner.parameters() if p.requires_grad]
    _, gradient = learner.meta_gradient(image_tasks(16), parameters)
    before = [p.detach().clone() for p in parameters]
    for p, g in zip(parameters, gradient, strict=True):
        assert g.stride() == p.stride()
        p.grad = g
    OPTIMIZERS[optimizer](parameters).step()
    for p, old, g in zip(parameters, before, gradient, strict=True):
        assert bool(((p - old) * g <= 0).all())
