r"""Gradient descent on a linear head under cross-entropy, whose derivative has a closed form.

With outputs O, labels as rows Y of zeros and ones, and n labels that count, the derivative of the
mean cross-entropy is $D = (\mathrm{softmax}(O) - Y) / n$. So a step of `linear_head` takes a few
operations, and no graph that is differentiated inside the outer level's.
"""

import torch
from torch import Tensor

from metamirror.core.adjoints import Adjoint
from metamirror.core.inner_loop import Path
from metamirror.core.losses import IGNORED, cross_entropy, loss_for
from metamirror.core.lower_level import LowerLevel


def is_softmax(lower: LowerLevel) -> bool:
    """Return whether cross-entropy of one label an example is what is minimised."""
    y = lower.batch.y
    if not isinstance(y, Tensor) or y.dim() != 1 or lower.prior is not None:
        return False
    return (lower.own_loss or loss_for(y)) is cross_entropy


def softmax_descent(
    first: Tensor, gram: Tensor, labels: Tensor, *, steps: int, lr: float, adjoint: Adjoint
) -> tuple[Tensor, Path]:
    """Return C after K steps from C = 0, and the path without its points.

    Args:
        first: the outputs at C = 0.
        gram: their derivative in C.
        labels: one for each row of the outputs.
        steps: K.
        lr: alpha.
        adjoint: unrolled, first order or detached.
    """
    counts = labels != IGNORED
    classes = torch.arange(first.shape[1], device=labels.device)
    target = (labels.unsqueeze(1) == classes).to(first.dtype)
    share = (counts.to(first.dtype) / counts.sum()).unsqueeze(1)
    along = torch.zeros_like(first)
    outputs, slopes = [], []
    with torch.set_grad_enabled(adjoint.builds_graph and torch.is_grad_enabled()):
        for _ in range(steps):
            output = torch.addmm(first, gram, along)
            slope = (output.softmax(1) - target) * share
            slope = slope if adjoint.second_order else slope.detach()
            along = torch.sub(along, slope, alpha=lr)
            outputs.append(output.detach())
            slopes.append(slope.detach())
    output, slope = torch.stack(outputs), torch.stack(slopes)
    losses = -(output.log_softmax(2) * target * share).sum((1, 2))
    norms = (slope * (gram.detach() @ slope)).sum((1, 2)).clamp(min=0).sqrt()
    return along, Path(losses, norms, (), ())
