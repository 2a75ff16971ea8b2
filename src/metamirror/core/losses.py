"""The default losses: cross-entropy for labels, mean squared error for real targets."""

from torch import Tensor
from torch.nn import functional as F

from metamirror.core.tasks import Loss


def loss_for(targets: Tensor) -> Loss:
    """Return cross-entropy for integer targets, mean squared error for floats."""
    return mean_squared_error if targets.is_floating_point() else cross_entropy


def cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """Return the mean cross-entropy of logits (examples, ways)."""
    if output.dim() != 2 or target.shape != output.shape[:1]:
        raise ValueError(
            f"cross-entropy takes logits (examples, ways) and labels (examples,); "
            f"the model gave {tuple(output.shape)} for labels {tuple(target.shape)}"
        )
    return F.cross_entropy(output, target.long())


def mean_squared_error(output: Tensor, target: Tensor) -> Tensor:
    """Return the mean squared error; shapes must agree, since broadcasting hides mistakes."""
    if output.shape != target.shape:
        raise ValueError(
            f"the model gave {tuple(output.shape)} for targets {tuple(target.shape)}; "
            f"mean squared error needs equal shapes (a trailing axis of 1 counts)"
        )
    return F.mse_loss(output, target)
