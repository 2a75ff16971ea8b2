r"""Gradient descent on a linear head, among the features of its support set.

A step is $W \leftarrow W - \alpha D^\top X$, with the features X of the support set and the
derivative D of the loss by the outputs. So W stays in $W_0 + C^\top X$, and the outputs are
$XW_0^\top + XX^\top C$: mirror descent of C along D, with the Gram matrix as its map. The steps are
the same and take as many numbers as there are examples, not features.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from metamirror.core.adjoints import Adjoint
from metamirror.core.geometry import Geometry, PointState, State, moved
from metamirror.core.inner_loop import Path, descend
from metamirror.core.lower_level import LowerLevel
from metamirror.core.softmax_head import is_softmax, softmax_descent
from metamirror.core.tasks import Params

WEIGHT, BIAS = "head.weight", "head.bias"
OUTPUTS = "outputs"
FEWER = 4
"""How many times as many features as examples there have to be."""


class HeadState(NamedTuple):
    """The coordinates C; the Gram matrix of the features, and the outputs at C = 0."""

    z: Params
    gram: Tensor
    first: Tensor


class HeadDescent(Geometry[HeadState]):
    """Plain gradient descent on a head, given the features of the support set as `prepared`.

    Its primal variable is the outputs, for which a lower level has to be minimised.
    """

    def begin(self, theta: Params, prepared: Any, noise: Params) -> HeadState:
        first = F.linear(prepared, theta[WEIGHT], theta.get(BIAS))
        gram = prepared @ prepared.mT
        if BIAS in theta:
            gram = gram + 1  # a bias is the weight of a feature that is 1
        return HeadState({OUTPUTS: torch.zeros_like(first)}, gram, first)

    def primal(self, state: HeadState) -> Params:
        return {OUTPUTS: torch.addmm(state.first, state.gram, state.z[OUTPUTS])}

    def step(self, state: HeadState, grad: Params, *, lr: float, loss: Tensor, k: int) -> HeadState:
        return state._replace(z=moved(state.z, grad, lr))

    def gradient_norm(self, state: HeadState, grad: Params) -> Tensor:
        """Return the length of D^T X, from the Gram matrix."""
        along = grad[OUTPUTS].detach()
        return (along * (state.gram.detach() @ along)).sum().clamp(min=0).sqrt()


def descended_on_head(
    lower: LowerLevel,
    state: State,
    *,
    steps: int,
    lr: float,
    adjoint: Adjoint,
    stacked: Sequence[Tensor] = (),
) -> Path:
    """Return the path of gradient descent on a head, of which the last point alone is kept.

    Args:
        lower: what is minimised; its batch has the head's inputs.
        state: where to start, with the head's parameters.
        steps: K.
        lr: alpha.
        adjoint: one for which a step may read what the body computed before.
        stacked: as in `inner_loop.descend`.
    """
    head, theta, features = HeadDescent(), state.z, lower.batch.x
    begun = head.begin(theta, features, {})
    if is_softmax(lower):
        along, path = softmax_descent(
            begun.first, begun.gram, lower.batch.y, steps=steps, lr=lr, adjoint=adjoint
        )
    else:
        outputs = replace(lower, predict=lambda phi, x: phi[OUTPUTS])
        path = descend(outputs, head, begun, steps=steps, lr=lr, adjoint=adjoint, stacked=stacked)
        along = path.states[-1].z[OUTPUTS]
    # A first-order gradient is a constant, features included.
    features = features if adjoint.second_order else features.detach()
    phi = {WEIGHT: torch.addmm(theta[WEIGHT], along.mT, features)}
    if BIAS in theta:
        phi[BIAS] = theta[BIAS] + along.sum(0)
    return replace(path, states=(PointState(phi),), points=(phi,))
