"""A linear head that descends among its support features: the same steps as on its weights."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import metamirror as mm
from metamirror.core.inner_level import InnerLevel
from metamirror.core.losses import IGNORED, cross_entropy, mean_squared_error
from metamirror.core.lower_level import LowerLevel
from metamirror.core.softmax_head import is_softmax

MODELS = {
    "head alone": lambda: mm.models.MLP(256, 5, hidden=()),
    "features that are learned": lambda: mm.models.Linear(256, 5),
    "behind a body": lambda: mm.models.MLP(256, 5, hidden=(64,)),
}


def glyphs(count: int = 3) -> mm.Task:
    tasks = mm.tasks("glyphs", image_size=16, batch=count)[0]
    batches = (mm.Batch(batch.x.flatten(2).double(), batch.y) for batch in tasks)
    return mm.Task(*batches)


def found(spec: str, model, vectorize: bool, tasks: mm.Task | None = None, **settings):
    learner = mm.make_learner(
        spec, model.double(), steps=5, lr=0.3, adapts="head", vectorize=vectorize, **settings
    )
    tasks = tasks or glyphs()
    (losses, _), gradient = learner.meta_gradient(tasks)
    adapted = learner.adapt(mm.Batch(tasks.support.x[0], tasks.support.y[0]))
    path = adapted.path
    return [losses, *gradient, path.losses, path.grad_norms, *adapted.params.values()]


@pytest.mark.parametrize("vectorize", [False, True])
@pytest.mark.parametrize("spec", ["maml", "fomaml", "protomaml"])
@pytest.mark.parametrize("model", MODELS)
def test_it_takes_the_steps_of_the_weights(model, spec, vectorize, monkeypatch):
    torch.manual_seed(0)
    network = MODELS[model]()
    if spec == "protomaml" and model == "head alone":
        pytest.skip("its head is computed, and nothing is left to learn")
    asked = []
    able = InnerLevel.descends_on_head

    def watched(self, *args):
        asked.append(able(self, *args))
        return asked[-1]

    monkeypatch.setattr(InnerLevel, "descends_on_head", watched)
    here = found(spec, network, vectorize)
    assert asked
    assert all(asked)
    monkeypatch.setattr(InnerLevel, "descends_on_head", lambda *args: False)
    for one, other in zip(here, found(spec, network, vectorize), strict=True):
        assert torch.allclose(one, other, rtol=1e-10, atol=1e-12)


def by_autograd(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Cross-entropy as a loss of the user's own, whose derivative nobody knows beforehand."""
    return cross_entropy(output, target)


@pytest.mark.parametrize("vectorize", [False, True])
@pytest.mark.parametrize("spec", ["maml", "fomaml"])
@pytest.mark.parametrize("model", MODELS)
def test_the_closed_form_of_cross_entropy_is_what_autograd_finds(model, spec, vectorize):
    torch.manual_seed(0)
    network, tasks = MODELS[model](), glyphs()
    tasks.support.y[:, 1] = IGNORED
    closed = found(spec, network, vectorize, tasks, query_loss=cross_entropy)
    plain = found(spec, network, vectorize, tasks, loss=by_autograd)
    for one, other in zip(closed, plain, strict=True):
        assert torch.allclose(one, other, rtol=1e-10, atol=1e-12)


def test_other_losses_and_targets_are_differentiated():
    features, labels = torch.randn(5, 64), torch.arange(5)

    def kind(target, loss=None) -> bool:
        return is_softmax(LowerLevel(lambda phi, x: x, mm.Batch(features, target), loss))

    assert kind(labels)
    assert kind(labels, cross_entropy)
    assert not kind(labels, by_autograd)
    assert not kind(torch.randn(5))
    assert not kind(torch.randn(5), mean_squared_error)


def test_its_meta_gradient_is_that_of_the_formula():
    torch.manual_seed(0)
    model = mm.models.MLP(256, 5, hidden=()).double()
    tasks = glyphs()
    learner = mm.make_learner("maml", model, steps=3, lr=0.3)
    _, gradient = learner.meta_gradient(tasks)
    start = [p.detach().clone().requires_grad_() for p in model.head.parameters()]
    total = 0.0
    for x, y, qx, qy in zip(*tasks.support, *tasks.query, strict=True):
        weight, bias = start
        for _ in range(3):
            logits = x @ weight.T + bias
            along = (logits.softmax(1) - F.one_hot(y, 5)) / len(y)
            weight, bias = weight - 0.3 * along.T @ x, bias - 0.3 * along.sum(0)
        total = total + F.cross_entropy(qx @ weight.T + bias, qy) / 3
    for one, other in zip(gradient, torch.autograd.grad(total, start), strict=True):
        assert torch.allclose(one, other, rtol=1e-10, atol=1e-12)


def test_few_features_a_prior_or_other_geometries_descend_on_the_weights():
    tasks = glyphs(1)
    support = mm.Batch(tasks.support.x[0], tasks.support.y[0])
    model = mm.models.MLP(256, 5, hidden=()).double()

    def able(spec: str, batch: mm.Batch = support, **own) -> bool:
        learner = mm.make_learner(spec, model, **own)
        return learner.descends_on_head(learner.lower_level(batch), learner.settings.adjoint)

    assert able("maml")
    assert not able("maml", prior="isotropic:0.1")
    assert not able("metasgd")
    assert not able("maml", adjoint="rematerialised")
    assert not able("maml", mm.Batch(support.x.repeat(20, 1), support.y.repeat(20)))


def test_labels_are_ignored_and_refused_as_torch_does_it_under_vmap():
    logits = torch.randn(2, 4, 3, dtype=torch.float64)
    labels = torch.tensor([[0, -100, 2, 1], [-100, -100, 1, 1]])
    loss = mm.core.losses.cross_entropy
    together = torch.func.vmap(torch.func.grad(loss))(logits, labels)
    for i in range(2):
        alone = logits[i].clone().requires_grad_()
        F.cross_entropy(alone, labels[i]).backward()
        assert torch.allclose(together[i], alone.grad)
    with pytest.raises((RuntimeError, IndexError)):
        torch.func.vmap(loss)(logits, labels + 7)
