r"""Singular values of a matrix multiplied by learned factors, with a derivative that is finite.

Let $G = U \Sigma V^\top$ with singular values $\sigma_1 \ge \sigma_2 \ge \dots$ and
$F = U M \Sigma V^\top$ with M = diag(m). With $f_i = m_i \sigma_i$ and $P = U^\top\,dG\,V$,

$$dF = U \big[ C^- \circ \tfrac12 (P + P^\top) + C^+ \circ \tfrac12 (P - P^\top) \big] V^\top
       + U M U^\top dG\, (I - V V^\top), \qquad
  C^\pm_{ij} = \frac{f_i \pm f_j}{\sigma_i \pm \sigma_j},$$

where the diagonal of $C^-$ is m. It needs no derivative of U and V, which exists for no matrix of
two equal singular values: the gradients of few examples have many that are zero.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function


def spectral_scaling(matrix: Tensor, scales: Tensor) -> Tensor:
    """Return U (M Sigma) V' of matrices (..., n, p), with the diagonal of M in `scales`.

    Args:
        matrix: G = U Sigma V', the largest singular value first.
        scales: the diagonal of M, (..., min(n, p)).

    >>> spectral_scaling(torch.tensor([[2.0, 0.0], [0.0, 3.0]]), torch.tensor([10.0, 1.0]))
    tensor([[ 2.,  0.],
            [ 0., 30.]])
    """
    if matrix.shape[-2] > matrix.shape[-1]:
        return spectral_scaling(matrix.mT, scales).mT
    scaled: Tensor = _SpectralScaling.apply(matrix, scales)[0]  # type: ignore[no-untyped-call]
    return scaled


class _SpectralScaling(Function):
    """The scaled matrix, and the decomposition that its derivative needs."""

    generate_vmap_rule = True

    @staticmethod
    def forward(matrix: Tensor, scales: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        # What is not finite has no decomposition, and stays as it is: a path that has diverged.
        finite = matrix.isfinite().all(-1, keepdim=True).all(-2, keepdim=True)
        u, s, vh = torch.linalg.svd(torch.where(finite, matrix, 0), full_matrices=False)
        # U M U'G, written so that scales of one return G to the bit.
        change = u @ ((scales - 1).unsqueeze(-1) * (u.mT @ matrix))
        return matrix + change, u, s, vh

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs, *output[1:])
        ctx.mark_non_differentiable(*output[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Any) -> Any:
        matrix, scales, u, s, vh = ctx.saved_tensors
        if torch.is_grad_enabled():
            # To be differentiated again, where the decomposition is no constant.
            u, s, vh = torch.linalg.svd(matrix, full_matrices=False)
        # The derivative is symmetric: what maps dG to dF maps the gradient by F to that by G.
        left = u.mT @ grad
        p = left @ vh.mT
        minus, plus = divided_differences(s, scales)
        inner = ((minus + plus) * p + (minus - plus) * p.mT) / 2
        beyond = scales.unsqueeze(-1) * (left - p @ vh)
        return u @ (inner @ vh + beyond), s * p.diagonal(dim1=-2, dim2=-1)


def divided_differences(s: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return (f_i - f_j) / (s_i - s_j) and (f_i + f_j) / (s_i + s_j) for f = m s.

    With the mean $\bar m$ and half the difference $\delta$ of two scales they are
    $\bar m + \delta (s_i + s_j) / (s_i - s_j)$ and $\bar m + \delta (s_i - s_j) / (s_i + s_j)$.
    Where two values are equal or both zero, F jumps or has a kink unless $\delta = 0$: both
    quotients are then $\bar m$, the mean of the limits from either side. To this end 1/d is
    replaced by $d^3 / (d^4 + \varepsilon^2)$, relative to the largest value, with $\varepsilon$
    the precision: values that differ by less than half the digits count as equal.
    """
    info = torch.finfo(s.dtype)
    s = s / s[..., :1].clamp_min(info.tiny)
    row, column = s.unsqueeze(-1), s.unsqueeze(-2)
    mean = (m.unsqueeze(-1) + m.unsqueeze(-2)) / 2
    half = (m.unsqueeze(-1) - m.unsqueeze(-2)) / 2
    gap, total = row - column, row + column
    by_gap, by_total = (d**3 / (d**4 + info.eps**2) for d in (gap, total))
    return mean + half * total * by_gap, mean + half * gap * by_total
