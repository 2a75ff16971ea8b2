"""The lower level of one task: what the inner loop minimises."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from metamirror.core.losses import loss_for, scalar
from metamirror.core.priors import Prior
from metamirror.core.tasks import Batch, Loss, Params

Lower = Callable[[Params, Params], tuple[Tensor, Tensor]]
"""(phi, phi^(0)) -> (loss plus prior, the loss alone): a `LowerLevel`, or any function."""


@dataclass(frozen=True)
class LowerLevel:
    r"""$L(\phi; \mathrm{support}) + R(\phi; \phi^{(0)})$ of one task, eq. (1b) of the paper.

    Attributes:
        predict: (phi, inputs) -> output: the model, in the learner's precision.
        batch: the support set.
        own_loss: (output, targets) -> scalar; None follows the targets.
        prior: R, if there is one.
        outputs: how many outputs the task asks for, where a start has to know.
        layer_input: (layer, theta) -> what that layer of the model is given for the support set
            at the phi^(0) of theta, where a start has to know.
        fixed: values of parameters that do not adapt, in place of the model's own.
    """

    predict: Callable[[Params, Tensor], Tensor]
    batch: Batch
    own_loss: Loss | None = None
    prior: Prior | None = None
    outputs: int | None = None
    layer_input: Callable[[str, Params], Tensor] | None = None
    fixed: Params = field(default_factory=dict)

    def loss(self, phi: Params) -> Tensor:
        """Return the support loss alone."""
        loss = self.own_loss or loss_for(self.batch.y)
        return scalar(loss(self.predict(phi, self.batch.x), self.batch.y))

    def __call__(self, phi: Params, phi0: Params) -> tuple[Tensor, Tensor]:
        """Return what is minimised, loss plus prior, and the loss alone."""
        loss = self.loss(phi)
        return (loss if self.prior is None else loss + self.penalty(phi, phi0)), loss

    def penalty(self, phi: Params, phi0: Params) -> Tensor:
        """Return R, which must be there."""
        if self.prior is None:
            raise ValueError("the lower level has no prior: give one, such as prior=isotropic:1")
        # What a geometry gives beside phi does not adapt, and has no prior.
        value: Tensor = self.prior({name: phi[name] for name in phi0}, phi0)
        return value / self.batch.examples if self.prior.per_example else value

    def gradient(self, phi: Params, phi0: Params, *, create_graph: bool = False) -> Params:
        """Return the gradient of loss plus prior at phi, which is taken as a constant."""
        leaves = {name: p.detach().requires_grad_() for name, p in phi.items()}
        return loss_and_gradient(self, leaves, phi0, create_graph)[1]


def loss_and_gradient(
    lower: Lower, phi: Params, phi0: Params, create_graph: bool
) -> tuple[Tensor, Params]:
    """Return the loss alone, and the gradient by phi of what is minimised."""
    with torch.enable_grad():
        total, loss = lower(phi, phi0)
        grads = torch.autograd.grad(
            total, tuple(phi.values()), create_graph=create_graph, materialize_grads=True
        )
    return loss, dict(zip(phi, grads, strict=True))
