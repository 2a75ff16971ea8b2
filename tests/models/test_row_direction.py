"""The linear model's rows: the passes by hand against the formula."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from metamirror.linalg.one_operation import one_operation
from metamirror.models.kernels import row_direction
from metamirror.models.kernels.row_direction import RowDirection

LENGTH = 1.7


@pytest.fixture(autouse=True)
def few_rows_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_direction, "BLOCK", 13)


def by_hand(x: Tensor, centre: Tensor, weights: Tensor) -> Tensor:
    rows = RowDirection(LENGTH, constant=not x.requires_grad)
    return one_operation(rows, [x], {"centre": centre, "weights": weights})[0]


def by_formula(x: Tensor, centre: Tensor, weights: Tensor) -> Tensor:
    return LENGTH * F.normalize((x - centre) * weights)


def inputs(*, learned_rows: bool) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, centre, weights = (
        torch.randn(*size, generator=generator, dtype=torch.float64, requires_grad=True)
        for size in ((7, 5), (5,), (5,))
    )
    return x.detach().requires_grad_(learned_rows), centre, weights


@pytest.mark.parametrize("learned_rows", [True, False])
def test_values_and_gradients_are_those_of_the_formula(learned_rows: bool) -> None:
    given = inputs(learned_rows=learned_rows)
    wanted = [t for t in given if t.requires_grad]
    found, expected = by_hand(*given), by_formula(*given)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
    grads = (torch.autograd.grad(y.sin().sum(), wanted) for y in (found, expected))
    torch.testing.assert_close(*grads, rtol=1e-11, atol=1e-13)


def test_it_can_be_differentiated_twice() -> None:
    assert torch.autograd.gradgradcheck(by_hand, inputs(learned_rows=True))


def test_a_row_at_the_centre_is_zero_and_has_the_slope_of_the_formula() -> None:
    x, centre, weights = inputs(learned_rows=False)
    x[2] = centre.detach()
    found, expected = by_hand(x, centre, weights), by_formula(x, centre, weights)
    assert found[2].abs().max() == 0
    grads = (torch.autograd.grad(y.sum(), (centre, weights)) for y in (found, expected))
    torch.testing.assert_close(*grads, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("own_weights", [True, False])
def test_stacked_tasks_have_the_gradients_of_the_formula(own_weights: bool) -> None:
    x, centre, weights = inputs(learned_rows=False)
    stack = torch.stack([x, 2 * x, x + 1])
    weighed = torch.stack([weights, weights + 1, 2 * weights]) if own_weights else weights
    dims = (0, None, 0 if own_weights else None)
    results = [
        torch.func.vmap(way, in_dims=dims)(stack, centre, weighed) for way in (by_hand, by_formula)
    ]
    torch.testing.assert_close(*results, rtol=1e-12, atol=1e-14)
    wanted = (centre, weights)
    grads = (torch.autograd.grad(y.sin().sum(), wanted, retain_graph=True) for y in results)
    torch.testing.assert_close(*grads, rtol=1e-11, atol=1e-13)
