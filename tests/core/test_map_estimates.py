"""K steps of gradient descent on a quadratic are a MAP estimate: theory.md, an implicit prior."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import metamirror as mm


def precision_of(hessian: Tensor, lr: float, steps: int) -> Tensor:
    """H (I - (I - aH)^K)^-1 (I - aH)^K, by matrices."""
    one = torch.eye(len(hessian), dtype=hessian.dtype)
    power = torch.linalg.matrix_power(one - lr * hessian, steps)
    return hessian @ torch.linalg.solve(one - power, power)


def least_squares(rows: int = 8) -> tuple[nn.Module, mm.Batch, Tensor, Tensor]:
    """A model and data, with Hessian and minimiser of the mean squared error."""
    generator = torch.Generator().manual_seed(4)
    x, y = (torch.randn(rows, n, generator=generator, dtype=torch.float64) for n in (5, 1))
    torch.manual_seed(0)
    model = nn.Linear(5, 1, bias=False).double()
    return model, mm.Batch(x, y), 2 * x.T @ x / rows, torch.linalg.pinv(x) @ y[:, 0]


@pytest.mark.parametrize("steps", [1, 2, 5, 30])
@pytest.mark.parametrize("share", [0.05, 0.5, 0.95])
def test_descent_from_the_start_is_the_map_estimate_of_its_prior(steps: int, share: float):
    """With a step size that is a share of 1 / l, l the largest eigenvalue of the Hessian."""
    model, support, hessian, minimiser = least_squares()
    lr = share / float(torch.linalg.eigvalsh(hessian)[-1])
    theta = model.weight.detach()[0]
    found = mm.make_learner("maml", model, steps=steps, lr=lr).adapt(support).params["weight"][0]
    prior = precision_of(hessian, lr, steps)
    assert torch.linalg.eigvalsh(0.5 * (prior + prior.T)).min() > -1e-15
    estimate = torch.linalg.solve(hessian + prior, hessian @ minimiser + prior @ theta)
    torch.testing.assert_close(found, estimate, rtol=0, atol=1e-10)


def test_another_precision_gives_another_estimate():
    model, support, hessian, minimiser = least_squares()
    theta = model.weight.detach()[0]
    found = mm.make_learner("maml", model, steps=5, lr=0.05).adapt(support).params["weight"][0]
    prior = precision_of(hessian, 0.05, 4)
    estimate = torch.linalg.solve(hessian + prior, hessian @ minimiser + prior @ theta)
    assert (found - estimate).abs().max() > 1e-3


def test_a_direction_that_the_data_leave_open_has_the_precision_of_the_path_s_length():
    """An eigenvalue h of the Hessian near zero gives 1 / (K alpha), whatever h is."""
    hessian = 1e-7 * torch.eye(1, dtype=torch.float64)
    assert float(precision_of(hessian, 0.1, 5)) == pytest.approx(1 / (5 * 0.1), rel=1e-5)


def test_a_step_beyond_the_bound_has_no_such_prior():
    """Between 1 / l and 2 / l descent converges, and the precision of an odd K is negative."""
    hessian = torch.eye(1, dtype=torch.float64)
    assert float(precision_of(hessian, 1.5, 3)) < 0 < float(precision_of(hessian, 1.5, 4))


def test_with_a_constant_preconditioner_the_same_holds_in_its_coordinates():
    model, support, hessian, minimiser = least_squares()
    learner = mm.make_learner("metasgd", model, steps=4, lr=0.05)
    rates = torch.linspace(0.02, 0.08, 5, dtype=torch.float64)
    with torch.no_grad():
        learner.geometry.rates[0].copy_(rates)
    found = learner.adapt(support).params["weight"][0]
    root = torch.diag(rates.sqrt())
    back = torch.linalg.inv(root)
    prior = back @ precision_of(root @ hessian @ root, 1.0, 4) @ back
    theta = model.weight.detach()[0]
    estimate = torch.linalg.solve(hessian + prior, hessian @ minimiser + prior @ theta)
    torch.testing.assert_close(found, estimate, rtol=0, atol=1e-10)
