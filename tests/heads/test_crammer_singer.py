"""The dual of the support vector machine against liblinear's, and its derivative."""

from __future__ import annotations

import pytest
import torch
from sklearn.svm import LinearSVC
from torch import Tensor

from metamirror.linalg.crammer_singer import crammer_singer

COSTS, FEATURES, SIZES = (0.1, 1.0, 10.0), (4, 10, 60), (1.0, 3.0, 10.0)


def problem(seed: int) -> tuple[Tensor, Tensor, float]:
    """Random examples of three to six classes; with few features, more examples than features."""
    random = torch.Generator().manual_seed(seed)
    ways, shots, kind = 3 + seed % 4, 1 + seed % 6, seed % 3
    x = torch.randn(ways * shots, FEATURES[kind], generator=random, dtype=torch.float64)
    return SIZES[kind] * x + 1, torch.arange(ways).repeat(shots), COSTS[kind]


def weights(x: Tensor, y: Tensor, cost: float) -> Tensor:
    labels = torch.eye(int(y.max()) + 1, dtype=x.dtype)[y]
    return crammer_singer(x @ x.T, labels, cost).T @ x


@pytest.mark.parametrize("seed", range(20))
def test_the_weights_are_those_of_liblinear(seed: int):
    x, y, cost = problem(seed)
    svm = LinearSVC(
        multi_class="crammer_singer", C=cost, fit_intercept=False, tol=1e-10, max_iter=10**6
    )
    expected = torch.from_numpy(svm.fit(x.numpy(), y.numpy()).coef_)
    torch.testing.assert_close(weights(x, y, cost), expected, rtol=0, atol=1e-5)


def gap(x: Tensor, y: Tensor, cost: float) -> float:
    """The primal value less the dual one, which no solver can fake, relative to the latter."""
    labels = torch.eye(int(y.max()) + 1, dtype=x.dtype)[y]
    alpha = crammer_singer(x @ x.T, labels, cost)
    assert float(alpha.sum(1).abs().max()) < 1e-12
    assert float((alpha - cost * labels).max()) < 1e-12
    w = alpha.T @ x
    half = 0.5 * float(w.square().sum())
    scores = x @ w.T
    own = scores.gather(1, y[:, None])
    hinge = float((scores - own + 1 - labels).max(1).values.sum())
    dual = float((alpha * labels).sum()) - half
    return (half + cost * hinge - dual) / dual


@pytest.mark.parametrize(
    ("ways", "shots", "features", "size"),
    [
        (5, 1, 16, 1.0),
        (5, 5, 1600, 1.0),
        (20, 5, 64, 1.0),
        (5, 30, 16, 3.0),
        (2, 1, 3, 1.0),
        (5, 5, 16, 1e-6),
        (5, 5, 1600, 100.0),
        *((5, 5, 64, size) for size in (1e-3, 1.0, 1e3)),
        *((5, 30, 16, size) for size in (1e-3, 1.0, 1e2)),  # no plane parts the classes
    ],
)
def test_it_converges_whatever_the_size_of_the_problem(ways, shots, features, size):
    random = torch.Generator().manual_seed(0)
    x = torch.randn(ways * shots, features, generator=random, dtype=torch.float64)
    assert gap(size * (x + 1), torch.arange(ways).repeat(shots), 0.1) < 1e-4


def test_repeated_and_vanishing_examples_leave_it_finite():
    y = torch.arange(3).repeat(2)
    for x in (torch.ones(6, 4), torch.zeros(6, 4), torch.eye(3, 4).repeat(2, 1)):
        assert bool(weights(x.double(), y, 0.1).isfinite().all())


@pytest.mark.parametrize("size", [1e-3, 1e3])
def test_its_derivative_is_that_of_the_solution_whatever_the_size_of_features(size: float):
    x, y, cost = problem(0)
    random = torch.Generator().manual_seed(7)
    direction = size * torch.randn(x.shape, generator=random, dtype=x.dtype)
    x = (size * x).requires_grad_()

    def value(x: Tensor) -> Tensor:
        return (weights(x, y, cost) * direction[: int(y.max()) + 1]).sum()

    (grad,) = torch.autograd.grad(value(x), x)
    slope = (
        float(value(x.detach() + 1e-5 * direction) - value(x.detach() - 1e-5 * direction)) / 2e-5
    )
    assert float((grad * direction).sum()) == pytest.approx(slope, rel=1e-4)


@pytest.mark.parametrize("seed", range(6))
def test_its_derivative_is_that_of_the_solution(seed: int):
    x, y, cost = problem(seed)
    random = torch.Generator().manual_seed(seed + 100)
    shape = (int(y.max()) + 1, x.shape[1])
    by = torch.randn(shape, generator=random, dtype=x.dtype)
    direction = torch.randn(x.shape, generator=random, dtype=x.dtype)
    x.requires_grad_()
    (grad,) = torch.autograd.grad((weights(x, y, cost) * by).sum(), x)
    ends = [(weights(x.detach() + e * direction, y, cost) * by).sum() for e in (1e-5, -1e-5)]
    slope = float(ends[0] - ends[1]) / 2e-5
    assert float((grad * direction).sum()) == pytest.approx(slope, rel=1e-4, abs=1e-7)


def test_tasks_side_by_side_are_solved_as_one_by_one():
    found = [problem(seed) for seed in (1, 5, 9)]
    y = found[0][1][:4]
    x = torch.stack([x[:4, :4] for x, _, _ in found])
    labels = torch.eye(4, dtype=x.dtype)[y]
    together = torch.func.vmap(lambda x: crammer_singer(x @ x.T, labels, 0.1))(x)
    alone = torch.stack([crammer_singer(own @ own.T, labels, 0.1) for own in x])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-12)
