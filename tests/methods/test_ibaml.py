"""iBaML against formulas: no variance, conjugate models, dense solves, averages."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence
from torch.func import functional_call
from torch.nn import functional as F

import metamirror as mm
from metamirror.methods.ibaml import GaussianDescent, GaussianKL
from metamirror.testing.methods import meta_gradient
from metamirror.testing.networks import smooth_mlp
from tests.comparing import assert_equal_learners, one
from tests.networks import image_tasks, point_tasks, shaken, with_torch_norm

SEEDS = [0, 1]


def test_without_variance_and_kl_it_is_maml():
    tasks = point_tasks()
    spec = "ibaml:kl=0:log_variance=-90:objective=query:adjoint=unrolled"
    found, expected = (
        mm.make_learner(one_spec, smooth_mlp(), steps=3, lr=0.3) for one_spec in (spec, "maml")
    )
    losses = [each.meta_loss(tasks, seeds=SEEDS) for each in (found, expected)]
    torch.testing.assert_close(*losses, rtol=0, atol=1e-12)
    grads, own = meta_gradient(expected, tasks), meta_gradient(found, tasks)
    for name, grad in grads.items():
        torch.testing.assert_close(own[name], grad, rtol=0, atol=1e-12)
    support = one(tasks.support)
    paths = [each.adapt(support, seed=0).path.losses for each in (found, expected)]
    torch.testing.assert_close(*paths, rtol=0, atol=1e-12)


def test_the_divergence_is_that_of_two_gaussians():
    torch.manual_seed(0)
    phi, phi0 = ({"w": torch.randn(4, 3), "v": torch.randn(4, 3)} for _ in range(2))
    q, p = (Normal(each["w"], (0.5 * each["v"]).exp()) for each in (phi, phi0))
    found = GaussianKL({"w": "v"}, 0.25)(phi, phi0)
    torch.testing.assert_close(found, 0.25 * kl_divergence(q, p).sum())


SIGNS = torch.tensor([[1, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]], dtype=torch.float64)
"""Four draws with mean zero and unit covariance: expectations of a quadratic are exact."""


def linear_gaussian(monkeypatch, orthogonal: bool) -> tuple[mm.Learner, mm.Batch, float]:
    """Linear regression whose prior is Gaussian: the posterior has a closed form."""
    generator = torch.Generator().manual_seed(2)
    x, y = (torch.randn(6, n, generator=generator, dtype=torch.float64) for n in (3, 1))
    if orthogonal:
        x = torch.linalg.qr(x)[0] * torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)
    draws = {"weight": torch.cat([SIGNS, SIGNS])[:, None]}
    monkeypatch.setattr(GaussianDescent, "draw", lambda self, generator: draws)
    kl = 0.8
    learner = mm.make_learner(
        f"ibaml:samples=4:kl={kl}:log_variance=-0.5",
        nn.Linear(3, 1, bias=False).double(),
        steps=1000,
        lr=0.3,
    )
    return learner, mm.Batch(x, y), kl


@pytest.mark.parametrize("orthogonal", [True, False])
def test_the_inner_minimum_of_a_conjugate_model_is_its_posterior(monkeypatch, orthogonal: bool):
    learner, support, kl = linear_gaussian(monkeypatch, orthogonal)
    found = learner.adapt(support, seed=0).params
    # The squared error is a Gaussian likelihood whose noise has the variance kl / 2.
    theta = learner.model.weight.detach()[0]
    prior = math.exp(0.5) * torch.eye(3, dtype=torch.float64)
    precision = support.x.T @ support.x / (kl / 2) + prior
    right = support.x.T @ support.y[:, 0] / (kl / 2) + prior @ theta
    mean = torch.linalg.solve(precision, right)
    torch.testing.assert_close(found["weight"][0], mean, rtol=0, atol=1e-9)
    variance = found["log_variance_00"].exp()[0]
    # The best Gaussian without correlations: exact where the posterior has none.
    torch.testing.assert_close(variance, 1 / precision.diagonal(), rtol=0, atol=1e-9)
    if orthogonal:
        inverse = torch.linalg.inv(precision).diagonal()
        torch.testing.assert_close(variance, inverse, rtol=0, atol=1e-9)


class Naive:
    """One task by plain loops over one vector (means, then log-variances), and dense solves."""

    def __init__(self, model, task, noise, *, samples, kl, log_variance, steps, lr, bound):
        self.model, self.kl = model, kl
        self.shapes = {name: p.shape for name, p in model.named_parameters()}
        mean = torch.cat([p.detach().flatten() for p in model.parameters()])
        prior = torch.cat([mean, torch.full_like(mean, log_variance)]).requires_grad_()
        draws = torch.cat([noise[name].double().flatten(1) for name in self.shapes], 1)
        support, query = (
            lambda v, batch=batch, e=e: sum(self.loss(v, row, batch) for row in e) / samples
            for batch, e in ((task.support, draws[:samples]), (task.query, draws[samples:]))
        )
        n, many = len(task.support.y), len(task.query.y)

        def lower(v: Tensor, prior: Tensor) -> Tensor:
            return support(v) + kl / n * self.divergence(v, prior)

        v = prior.detach().clone().requires_grad_()
        for _ in range(steps):
            v = (v - lr * torch.autograd.grad(lower(v, prior), v)[0]).detach().requires_grad_()
        outer = query(v)
        if bound:
            outer = (n * support(v) + many * outer + kl * self.divergence(v, prior)) / (n + many)
        q, direct = torch.autograd.grad(outer, [v, prior], allow_unused=True)
        hessian = torch.autograd.functional.hessian(lambda u: lower(u, prior.detach()), v)
        w = torch.linalg.solve(hessian, q)
        first = torch.autograd.grad(lower(v, prior), v, create_graph=True)[0]
        implicit = torch.autograd.grad(-w @ first, prior)[0]
        self.gradient = implicit if direct is None else implicit + direct
        self.value = outer.detach()

    def loss(self, v: Tensor, noise: Tensor, batch: mm.Batch) -> Tensor:
        mean, log_variance = v.chunk(2)
        weights = mean + torch.sqrt(torch.exp(log_variance)) * noise
        pieces = weights.split([shape.numel() for shape in self.shapes.values()])
        own = {n: t.view(s) for t, (n, s) in zip(pieces, self.shapes.items(), strict=True)}
        return F.cross_entropy(functional_call(self.model, own, (batch.x,)), batch.y)

    def divergence(self, v: Tensor, prior: Tensor) -> Tensor:
        (m, s), (m0, s0) = v.chunk(2), prior.chunk(2)
        return 0.5 * (torch.exp(s - s0) + (m - m0) ** 2 / torch.exp(s0) - 1 - s + s0).sum()


@pytest.mark.parametrize("objective", ["bound", "query"])
def test_the_gradient_is_that_of_a_dense_solve(objective: str):
    model = mm.models.MLP(6, 3, hidden=(4,), activation="tanh").double()
    tasks = point_tasks(count=1)
    options = {"samples": 3, "kl": 0.5, "log_variance": -2.0}
    learner = mm.make_learner(
        "ibaml",
        model,
        steps=20,
        lr=0.1,
        objective=objective,
        adjoint="implicit:cg=400,damping=0",
        **options,
    )
    noise = learner.geometry.draw(torch.Generator().manual_seed(0))
    task = mm.Task(one(tasks.support), one(tasks.query))
    naive = Naive(model, task, noise, steps=20, lr=0.1, bound=objective == "bound", **options)
    loss = learner.meta_loss(tasks, seeds=[0])
    torch.testing.assert_close(loss.detach(), naive.value, rtol=0, atol=1e-12)
    found = meta_gradient(learner, tasks)
    order = [f"model.{name}" for name, _ in model.named_parameters()]
    order += [f"model.log_variance_{i:02}" for i in range(len(order))]
    flat = torch.cat([found[name].flatten() for name in order])
    torch.testing.assert_close(flat, naive.gradient, rtol=0, atol=1e-8)


def test_a_prediction_averages_probabilities_over_draws():
    learner = mm.make_learner("ibaml:log_variance=-2", smooth_mlp(), steps=2, lr=0.1)
    tasks = point_tasks()
    adapted = learner.adapt(one(tasks.support), seed=0)
    assert len(adapted.members) == 5
    x = one(tasks.query).x
    each = torch.stack([functional_call(smooth_mlp(), _own(m), (x,)) for m in adapted.members])
    torch.testing.assert_close(adapted(x).exp(), each.softmax(-1).mean(0))
    at_the_mean = functional_call(smooth_mlp(), _own(adapted.params), (x,)).softmax(-1)
    assert (adapted(x).exp() - at_the_mean).abs().max() > 1e-3
    values = mm.make_learner("ibaml:log_variance=-2", smooth_mlp(), steps=2, lr=0.1)
    support = mm.Batch(one(tasks.support).x, torch.zeros(6, 3, dtype=torch.float64))
    adapted = values.adapt(support, seed=0)
    each = torch.stack([functional_call(smooth_mlp(), _own(m), (x,)) for m in adapted.members])
    torch.testing.assert_close(adapted(x), each.mean(0))


def _own(params: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: p for name, p in params.items() if not name.startswith("log_variance")}


def test_the_noise_is_the_seed_s():
    learner, tasks = mm.make_learner("ibaml", smooth_mlp(), lr=0.1), point_tasks()
    losses = [learner.meta_loss(tasks, seeds=seeds).item() for seeds in (SEEDS, SEEDS, [2, 3])]
    assert losses[0] == losses[1] != losses[2]


def test_it_is_saved_and_loaded(tmp_path):
    learner = shaken(mm.make_learner("ibaml:kl=0.1", smooth_mlp(), steps=2, lr=0.01))
    mm.save(learner, tmp_path)
    loaded = mm.load(tmp_path)
    assert isinstance(loaded.prior, GaussianKL)
    assert_equal_learners(loaded, learner, point_tasks())


def test_an_adapted_model_predicts_the_same_from_its_file_and_exported(tmp_path):
    model = mm.models.Conv4(ways=3, channels=1, image_size=16, width=4)
    learner = mm.make_learner("ibaml:samples=2:log_variance=-3", model, steps=2, norm="inductive")
    (x, y), query = (one(b) for b in image_tasks(size=16))
    classifier = mm.FewShotClassifier(learner, random_state=0).fit(x.sigmoid(), y.tolist())
    pixels = (255 * query.x.sigmoid()).byte().movedim(1, 3)
    found = classifier.predict_proba(pixels)
    classifier.save(tmp_path / "model")
    again = mm.FewShotClassifier.load(tmp_path / "model").predict_proba(pixels)
    assert (found == again).all()
    from metamirror.estimators.export import export

    export(classifier, tmp_path / "model.pt2", "torch")
    program = torch.export.load(tmp_path / "model.pt2").module()
    exported = program(pixels.expand(-1, -1, -1, 3).contiguous())
    torch.testing.assert_close(exported, torch.tensor(found).float(), rtol=0, atol=1e-5)


def test_a_model_that_is_a_sequence_runs():
    model = with_torch_norm()
    learner = mm.make_learner("ibaml", model, lr=0.01)
    assert math.isfinite(learner.meta_loss(image_tasks(), seeds=SEEDS).item())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"samples": 0}, "ibaml:samples is 0; it must be at least 1"),
        ({"kl": -1.0}, "ibaml:kl is -1.0; it must be finite and at least 0"),
        ({"kl": 0.0}, "reaches the start through the prior .* and its weight is 0"),
        ({"log_variance": math.inf}, "ibaml:log_variance is inf; it must be finite"),
    ],
)
def test_a_bad_option_is_named(options: dict, words: str):
    with pytest.raises(ValueError, match=words):
        mm.make_learner("ibaml", smooth_mlp(), **options)


def test_a_name_that_the_model_has_is_not_overwritten():
    model = smooth_mlp()
    model.log_variance_00 = nn.Parameter(torch.zeros(3, dtype=torch.float64))
    with pytest.raises(ValueError, match="'log_variance_00' already: rename it"):
        mm.make_learner("ibaml", model)
