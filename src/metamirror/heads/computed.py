"""A start whose head is computed from the support set; the outer level learns the body."""

from abc import abstractmethod

import torch
from torch import Tensor, nn

from metamirror.core.lower_level import LowerLevel
from metamirror.core.start import Start
from metamirror.core.tasks import Params
from metamirror.models import head_of


class ComputedHead(Start):
    """Begins at the learned parameters with another head, a function of the support set's features.

    The features are the inputs of the head, the model's last linear layer. Gradients flow through
    them to the body; the model's own head rests, frozen. There are as many outputs as the task asks
    for.

    Args:
        model: its head must be an `nn.Linear` with parameters of its own.
    """

    shared = False
    any_outputs = True
    needs_bias = False
    """Whether the head must have a bias."""
    labels_only = True
    """Whether it tells classes apart, and takes no real targets."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.head = head_of(model)
        layer = model.get_submodule(self.head)
        assert isinstance(layer, nn.Linear)
        self.features, self.biased = layer.in_features, layer.bias is not None
        self.computed = [
            f"{self.head}.{name}".lstrip(".") for name in ("weight", "bias")[: 1 + self.biased]
        ]
        everywhere = [id(p) for _, p in model.named_parameters(remove_duplicate=False)]
        if any(everywhere.count(id(p)) > 1 for p in layer.parameters()):
            raise ValueError(
                f"the head {self.head!r} shares a parameter with another layer, and cannot be "
                f"computed: untie them"
            )
        if self.needs_bias and not self.biased:
            raise ValueError(
                f"the head {self.head!r} has no bias, which these weights need: build it with "
                f"bias=True"
            )

    def forward(self, theta: Params, lower: LowerLevel) -> Params:
        if lower.layer_input is None or lower.outputs is None:
            raise ValueError("a computed head needs the model's features: begin with a Learner")
        features = lower.layer_input(self.head, theta)
        if features.dim() != 2:
            raise ValueError(
                f"the head {self.head!r} is given {tuple(features.shape)}; a head that is computed "
                f"takes (examples, features)"
            )
        weight, bias = self.weight_and_bias(features, lower.batch.y, lower.outputs)
        dtype = theta[self.computed[0]].dtype
        # In the usual order in memory, as it comes back from a file: others round differently.
        own = (weight.to(dtype).contiguous(), bias.to(dtype))
        return {**theta, **dict(zip(self.computed, own, strict=False))}

    @abstractmethod
    def weight_and_bias(self, features: Tensor, y: Tensor, outputs: int) -> tuple[Tensor, Tensor]:
        """Return the head's weight (outputs, features) and bias (outputs,)."""


def indicators(y: Tensor, classes: int, like: Tensor, who: str) -> Tensor:
    """Return a row for each label, 1 at its class and 0 elsewhere; refuse real targets."""
    if y.is_floating_point():
        raise ValueError(
            f"start={who} tells classes apart, and the targets are real numbers: use start=ridge"
        )
    return (y.unsqueeze(-1) == torch.arange(classes, device=y.device)).to(like.dtype)
