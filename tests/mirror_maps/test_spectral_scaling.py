"""Scaled singular values, and a derivative that exists where that of the decomposition does not."""

from __future__ import annotations

import pytest
import torch

from metamirror.linalg.spectral_scaling import divided_differences, spectral_scaling

SHAPES = [(3, 5), (5, 3), (4, 4), (1, 6), (6, 1)]


def of_singular_values(*values: float, columns: int = 6) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    n = len(values)
    left, right = (
        torch.linalg.qr(torch.randn(size, n, generator=generator, dtype=torch.float64))[0]
        for size in (n, columns)
    )
    return left * torch.tensor(values, dtype=torch.float64) @ right.mT


def some_scales(count: int) -> torch.Tensor:
    return torch.linspace(0.4, 1.9, count, dtype=torch.float64)


@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_the_product_of_the_scaled_decomposition(shape: tuple[int, int]):
    torch.manual_seed(0)
    g = torch.randn(2, *shape, dtype=torch.float64)
    m = torch.rand(2, min(shape), dtype=torch.float64)
    for matrix, scales, found in zip(g, m, spectral_scaling(g, m), strict=True):
        u, s, vh = torch.linalg.svd(matrix)
        expected = sum(scales[i] * s[i] * torch.outer(u[:, i], vh[i]) for i in range(min(shape)))
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("shape", SHAPES)
def test_its_derivatives_are_slopes(shape: tuple[int, int]):
    torch.manual_seed(1)
    g = torch.randn(2, *shape, dtype=torch.float64, requires_grad=True)
    m = torch.rand(2, min(shape), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(spectral_scaling, (g, m))
    assert torch.autograd.gradgradcheck(spectral_scaling, (g, m))


def test_scales_of_one_leave_the_matrix_as_it_is():
    g = torch.randn(4, 7)
    assert torch.equal(spectral_scaling(g, torch.ones(4)), g)


def test_it_does_not_depend_on_the_basis():
    torch.manual_seed(2)
    g, m = torch.randn(4, 6, dtype=torch.float64), some_scales(4)
    q, r = (torch.linalg.qr(torch.randn(n, n, dtype=torch.float64))[0] for n in (4, 6))
    torch.testing.assert_close(spectral_scaling(q @ g @ r, m), q @ spectral_scaling(g, m) @ r)


def test_on_matrices_of_one_rank_its_derivative_is_the_slope():
    """As of a linear layer's gradient: a product of as many columns and rows as examples."""
    torch.manual_seed(4)
    left = torch.randn(5, 2, dtype=torch.float64, requires_grad=True)
    right = torch.randn(2, 7, dtype=torch.float64, requires_grad=True)
    m = some_scales(5).requires_grad_()
    assert torch.autograd.gradcheck(lambda a, b, m: spectral_scaling(a @ b, m), (left, right, m))


DEGENERATE = {
    "zero": torch.zeros(4, 6, dtype=torch.float64),
    "orthogonal": of_singular_values(1.0, 1.0, 1.0, 1.0),
    "two pairs": of_singular_values(3.0, 3.0, 1.0, 1.0),
    "rank one": of_singular_values(2.0, 0.0, 0.0, 0.0),
    "a tie and rank two": of_singular_values(2.0, 2.0, 0.0, 0.0),
    "almost a tie": of_singular_values(2.0, 2.0 - 1e-15, 1.0, 1e-17),
    "tiny": 1e-160 * of_singular_values(2.0, 1.0, 0.5, 0.0),
    "huge": 1e160 * of_singular_values(2.0, 1.0, 0.5, 0.0),
}


@pytest.mark.parametrize("name", DEGENERATE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_is_finite_and_bounded_where_values_coincide_or_vanish(name: str, dtype: torch.dtype):
    g, m = DEGENERATE[name].to(dtype, copy=True), some_scales(4).to(dtype)
    if not torch.isfinite(g).all():
        pytest.skip("not representable")
    g.requires_grad_()
    m.requires_grad_()
    found = spectral_scaling(g, m)
    by_g, by_m = torch.autograd.grad(found, (g, m), torch.randn_like(found))
    assert all(torch.isfinite(t).all() for t in (found, by_g, by_m))
    # Where no two values are near each other, a slope is at most one of the quotients below.
    slopes = torch.autograd.functional.jacobian(lambda g: spectral_scaling(g, m), g)
    s = torch.linalg.svdvals(DEGENERATE[name]) / max(1e-300, torch.linalg.norm(DEGENERATE[name]))
    f, largest = some_scales(4) * s, float(some_scales(4).max())
    most = max(
        float((f[i] - f[j]).abs() / (s[i] - s[j])) if s[i] - s[j] > 0.1 else largest
        for i in range(4)
        for j in range(i, 4)
    )
    assert torch.linalg.matrix_norm(slopes.reshape(24, 24), 2) < 1.0001 * most


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_so_without_an_error(value: float):
    g = torch.randn(2, 3, 5)
    g[0, 1, 2] = value
    found = spectral_scaling(g, torch.full((3,), 0.5))
    assert not torch.isfinite(found[0, 1, 2])
    torch.testing.assert_close(found[1], 0.5 * g[1])


@pytest.mark.parametrize("name", ["zero", "orthogonal", "two pairs", "rank one"])
def test_equal_scales_have_the_slope_of_a_multiple_even_there(name: str):
    g = DEGENERATE[name]
    slopes = torch.autograd.functional.jacobian(
        lambda g: spectral_scaling(g, torch.full((4,), 0.7, dtype=torch.float64)), g
    )
    expected = 0.7 * torch.eye(24, dtype=torch.float64)
    torch.testing.assert_close(slopes.reshape(24, 24), expected)


def test_at_a_tie_both_quotients_are_the_mean_of_the_scales():
    s = torch.tensor([2.0, 2.0, 0.0, 0.0], dtype=torch.float64)
    m = torch.tensor([3.0, 1.0, 5.0, 7.0], dtype=torch.float64)
    minus, plus = divided_differences(s, m)
    assert minus[0, 1] == plus[0, 1] == 2
    assert minus[2, 3] == plus[2, 3] == 6
    # A value of zero has no part in what it shares with another.
    torch.testing.assert_close(minus[0, 2:], torch.tensor([3.0, 3.0], dtype=torch.float64))
    torch.testing.assert_close(plus[1, 2:], torch.tensor([1.0, 1.0], dtype=torch.float64))


@pytest.mark.parametrize("shape", [(3, 5), (5, 3)])
def test_vmap_gives_what_a_loop_gives(shape: tuple[int, int]):
    torch.manual_seed(5)
    g = torch.randn(4, *shape, dtype=torch.float64, requires_grad=True)
    m = some_scales(min(shape)).requires_grad_()
    weights = torch.randn_like(g)
    vectorised = torch.func.vmap(spectral_scaling, (0, None))(g, m)
    loop = torch.stack([spectral_scaling(one, m) for one in g])
    found = (
        [values, *torch.autograd.grad(values, (g, m), weights)] for values in (vectorised, loop)
    )
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-13)
