"""Factors of spectral norm one, and the derivative of that norm."""

from __future__ import annotations

import pytest
import torch

from metamirror.linalg.spectral_norm import distinct_singular_values, spectral_normalised


@pytest.mark.parametrize("shape", [(3, 4), (4, 3), (1, 5)])
def test_its_derivatives_are_slopes(shape: tuple[int, int]):
    torch.manual_seed(0)
    factor = (3 * distinct_singular_values(2, *shape)).double().requires_grad_()
    assert torch.linalg.matrix_norm(spectral_normalised(factor), 2).allclose(
        torch.ones(2, dtype=torch.float64)
    )
    assert torch.autograd.gradcheck(spectral_normalised, (factor,))
    assert torch.autograd.gradgradcheck(spectral_normalised, (factor,))


@pytest.mark.parametrize("size", [0.0, 1e-30, 1e30])
def test_extreme_sizes_neither_overflow_nor_divide_by_zero(size: float):
    torch.manual_seed(0)
    found = spectral_normalised(size * torch.randn(2, 3, 4))
    norms = torch.linalg.matrix_norm(found, 2)
    assert torch.isfinite(found).all()
    torch.testing.assert_close(norms, torch.full((2,), float(size > 0)), rtol=1e-5, atol=0)
