"""Fit a model: adapt a start to a few examples."""

import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from metamirror.core.adapted import Adapted
from metamirror.core.learner import Learner
from metamirror.core.losses import loss_for
from metamirror.core.normalisation import BatchNorm, Statistics
from metamirror.core.tasks import Batch
from metamirror.estimators.inputs.images import Reader
from metamirror.estimators.inputs.numbers import check_flag

AT_ONCE = 16
"""Examples that the adapted model sees at a time, filled up where there are fewer.

Kernels are chosen by the size of a batch and round differently: with one size, an example's
prediction has the same bits whatever other examples are asked for.
"""

_locks: WeakKeyDictionary[Learner, threading.Lock] = WeakKeyDictionary()
_table = threading.Lock()


@dataclass(frozen=True)
class FittedModel:
    """What `fit` makes, `save` writes and `export` converts; losses and seconds as in `adapt`."""

    learner: Learner
    reader: Reader
    support: Batch
    adapted: Adapted
    losses: list[float]
    seconds: float
    n_features_in: int | None = None  # the length of the rows, where X was a table
    classes: NDArray[Any] | None = None  # a classifier's labels in order
    temperature: float | None = None  # what a classifier's logits are divided by
    held_out_accuracy: float | None = None  # of a classifier's own examples, where it was measured
    flat: bool | None = None  # whether a regressor's y had one axis

    def outputs(self, x: Tensor) -> Tensor:
        """Return the adapted model's outputs, on the CPU."""
        filled = torch.cat([x, x.new_zeros(-len(x) % AT_ONCE, *x.shape[1:])])
        with lock_of(self.learner):
            found = [self.adapted(rows).cpu() for rows in filled.split(AT_ONCE)]
        return torch.cat(found)[: len(x)]


def lock_of(learner: Learner) -> threading.Lock:
    """Return the lock that lets one thread at a time use a learner.

    A module that runs with other parameters holds them meanwhile (`torch.func.functional_call`):
    a second thread would compute with them, or save them.
    """
    # Kept here: estimators are copied and pickled, and locks are not.
    with _table:
        return _locks.setdefault(learner, threading.Lock())


Adapt = Callable[[Batch], tuple[Adapted, list[float], float]]
"""`adapt` of a learner with all its settings: what is left is the support set."""


def adapt(
    learner: Learner, support: Batch, *, early_stopping: bool = False, tol: float = 1e-3, **own: Any
) -> tuple[Adapted, list[float], float]:
    """Return a finite adapted model, the support losses and the seconds it took.

    There is a loss before each step and one after the last. The others are `steps`, `lr` and `seed`
    of `Learner.adapt`; early stopping is that of `FewShotClassifier`.
    """
    check_flag("early_stopping", early_stopping)
    if not isinstance(tol, Real) or isinstance(tol, bool) or not 0 <= tol < 1:
        raise ValueError(f"tol is {tol!r}; a share of the loss, at least 0 and below 1")
    begun = time.perf_counter()
    if early_stopping:
        path = learner.adaptations(support, **own)
        adapted = next(path)
        losses = [_loss(learner, adapted, support)]
        for further in path:
            loss = _loss(learner, further, support)
            if not loss <= losses[-1]:
                break
            adapted = further
            losses.append(loss)
            if losses[-2] - loss < tol * losses[0]:
                break
    else:
        adapted = learner.adapt(support, **own)
        losses = [*adapted.path.losses.tolist(), _loss(learner, adapted, support)]
    seconds = time.perf_counter() - begun
    finite = all(bool(torch.isfinite(p).all()) for p in adapted.params.values())
    if not (finite and all(map(math.isfinite, losses))):
        lr = learner.lr if own.get("lr") is None else own["lr"]
        said = ", ".join(f"{loss:.4g}" for loss in losses)
        raise ValueError(
            f"adaptation left the finite numbers (support losses {said}): lower lr, which is {lr:g}"
        )
    return adapted, losses, seconds


def _loss(learner: Learner, adapted: Adapted, support: Batch) -> float:
    """Return the support loss of an adapted model, whose statistics are those of this batch."""
    loss = learner.settings.loss or loss_for(support.y)
    with torch.no_grad():
        return float(loss(adapted(support.x), support.y))


def placed(x: Tensor, learner: Learner) -> Tensor:
    """Return examples where a learner is, and numbers in its precision."""
    first = next(learner.parameters())
    return x.to(first.device, first.dtype if x.is_floating_point() else x.dtype)


def seed_of(random_state: Any) -> int | None:
    """Return a seed, from what scikit-learn's users give.

    >>> seed_of(3), seed_of(None)
    (3, None)
    """
    if random_state is None:
        return None
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(2**31 - 1))
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(2**31 - 1))
    whole = isinstance(random_state, int | np.integer) and not isinstance(random_state, bool)
    if whole and 0 <= random_state < 2**63:
        return int(random_state)
    raise ValueError(
        f"random_state is {random_state!r}; give None, a whole number from 0, or one of numpy's "
        f"random generators"
    )


class FixedStatistics(nn.Module):
    """Statistics of normalisation as the buffers of a module, which is copied, moved and exported.

    Args:
        named: what `named_statistics` gives.
    """

    def __init__(self, named: Mapping[str, Tensor]):
        super().__init__()
        self.buffers_of = {name: name.replace(".", "_") for name in named}
        for name, buffer in self.buffers_of.items():
            self.register_buffer(buffer, named[name].detach().cpu().clone())

    def of(self, model: nn.Module) -> Statistics:
        """Return them for a model, to be used inside `fixed_statistics`."""
        named = {name: self.get_buffer(buffer) for name, buffer in self.buffers_of.items()}
        return statistics_of(model, named)


def named_statistics(model: nn.Module, statistics: Statistics | None) -> dict[str, Tensor]:
    """Return the tensors of a model's statistics as `{use}.{mean or var}.{layer}`."""
    names = {module: name for name, module in model.named_modules()}
    return {
        f"{use}.{part}.{names[norm]}": value
        for norm, uses in (statistics or {}).items()
        for use, pair in enumerate(uses)
        for part, value in zip(("mean", "var"), pair, strict=True)
    }


def statistics_of(model: nn.Module, named: dict[str, Tensor]) -> Statistics:
    """Return the statistics of which `named_statistics` gave the tensors."""
    found: Statistics = {}
    for name, module in model.named_modules():
        if isinstance(module, BatchNorm):
            uses = sum(key.partition(".")[2] == f"mean.{name}" for key in named)
            found[module] = [
                (named[f"{use}.mean.{name}"], named[f"{use}.var.{name}"]) for use in range(uses)
            ]
    return found
