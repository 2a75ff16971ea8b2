"""A model adapted to one task."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from metamirror.core.inner_level import InnerLevel
from metamirror.core.inner_loop import Path
from metamirror.core.normalisation import Statistics
from metamirror.core.tasks import precise
from metamirror.core.trees import Tree, mapped


class Adapted:
    """A model adapted to one task: call it on new inputs.

    Attributes:
        params: the adapted parameters, phi^(K).
        path: support losses and gradient norms on the way there.
        statistics: what normalisation uses; None if the batch's own.
        labels: whether it tells classes apart, so that its outputs are logits.
        members: the parameters with which the model runs; predictions of several are averaged.
    """

    def __init__(
        self, inner: InnerLevel, path: Path, statistics: Statistics | None, *, labels: bool
    ):
        self.params, self.path, self.statistics = path.phi, path, statistics
        self.labels = labels
        self.members = inner.geometry.members(path.phi)
        self._inner = inner
        # Copies: the learner's own go on learning.
        self._fixed = {name: p.clone() for name, p in inner.fixed().items()}

    def __call__(self, x: Tree) -> Any:
        with torch.no_grad():
            members = ({**self._fixed, **member} for member in self.members)
            outputs = [self._inner.predict(phi, x, self.statistics) for phi in members]
            return averaged(outputs, self.labels)


def averaged(outputs: Sequence[Tree], labels: bool) -> Tree:
    """Return the mean of several predictions: of probabilities, as their logarithms, for labels.

    >>> logits = [torch.tensor([0.0, 0.0]), torch.tensor([0.0, 100.0])]
    >>> averaged(logits, labels=True).exp()
    tensor([0.2500, 0.7500])
    """
    if len(outputs) == 1:
        return outputs[0]
    if not (labels and isinstance(outputs[0], Tensor)):
        return mapped(lambda *parts: torch.stack(parts).mean(0), *outputs)
    stacked = torch.stack(list(outputs))
    # Exponentials round by an example's place in the batch: in double precision nobody sees it.
    wide = precise(stacked).log_softmax(-1).logsumexp(0) - math.log(len(outputs))
    return wide.to(stacked.dtype)
