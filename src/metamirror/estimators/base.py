"""What a few-shot classifier and a few-shot regressor have in common."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from metamirror.core.learner import Adapted, Learner
from metamirror.core.tasks import Batch
from metamirror.estimators.features import Features
from metamirror.estimators.fitting import Adaptation, Outcome
from metamirror.estimators.in_turn import in_turn
from metamirror.estimators.inputs.images import Pictures
from metamirror.estimators.sklearn_api import Estimator, not_fitted
from metamirror.estimators.starts import Start, open_start
from metamirror.training.device import choose_device

Reader = Pictures | Features
"""What makes examples of X."""

AT_ONCE = 16
"""Examples that the adapted model sees at a time, filled up where there are fewer.

Kernels are chosen by the size of a batch and round differently: with one size, an example's
prediction has the same bits whoever else is asked for.
"""


class FewShotEstimator(Estimator):
    """Adapts a learner to a support set, which it keeps, and asks the adapted model."""

    start: Start
    steps: int | None
    lr: float | None
    early_stopping: bool
    tol: float
    invert: bool
    ink: bool
    device: str
    random_state: Any

    learner_: Learner
    adapted_: Adapted
    reader_: Reader
    support_: Batch
    losses_: list[float]
    adaptation_seconds_: float
    n_steps_: int
    n_features_in_: int

    # What users call

    def predict(self, X: Any) -> NDArray[Any]:
        """What the adapted model says of each example."""
        raise NotImplementedError

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the adapted model into one safetensors file, from which `load` restores it.

        The file holds the start, the adapted parameters, the statistics and the examples (to go
        on from with `partial_fit`), and no pickle.

        Args:
            path: the file; one that is there is replaced at once, or left as it was.
        """
        from metamirror.estimators.model_file import write

        write(self, Path(path))

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        model: nn.Module | None = None,
        device: str = "auto",
    ) -> Self:
        """An adapted model from a file that `save` wrote; it predicts the same bits.

        Args:
            path: the file.
            model: needed where the start was built around a class of the user's own.
            device: auto (CUDA, MPS or CPU, in this order), or one of them.
        """
        from metamirror.estimators.model_file import read

        found = read(Path(path), model, device)
        if not isinstance(found, cls):
            raise ValueError(
                f"{path} holds a {type(found).__name__}: use {type(found).__name__}.load"
            )
        return found

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "adapted_")

    # What the two estimators share

    def _open(self) -> Learner:
        """The start, where this estimator computes."""
        return open_start(self.start).to(choose_device(self.device))

    def _how(self) -> Adaptation:
        return Adaptation(
            self.steps, self.lr, self.early_stopping, self.tol, seed_of(self.random_state)
        )

    def _reader(self, learner: Learner) -> Reader:
        """As the parameters say now; `fit` keeps it in `reader_`."""
        shape = picture_shape(learner.model)
        if shape is not None:
            return Pictures(*shape, self.invert, self.ink)
        for name in ("invert", "ink"):
            if getattr(self, name):
                raise ValueError(f"{name} is for pictures, and this start takes none: leave it out")
        return Features()

    def _keep(self, learner: Learner, reader: Reader, support: Batch, outcome: Outcome) -> None:
        self.learner_, self.reader_, self.support_ = learner, reader, support
        self.adapted_, self.losses_ = outcome.adapted, outcome.losses
        self.adaptation_seconds_ = outcome.seconds
        self.n_steps_ = len(outcome.losses) - 1

    def _note_features(self, x: Any) -> None:
        """Keeps the length of the rows, where examples are rows."""
        if (length := row_length(x)) is not None:
            self.n_features_in_ = length
        elif hasattr(self, "n_features_in_"):
            del self.n_features_in_

    def _ask(self, x: Any) -> Tensor:
        """The adapted model's outputs, on the CPU."""
        if not hasattr(self, "adapted_"):
            raise not_fitted(self)
        self._check_features(x)
        examples = read(self.reader_, self.learner_, x)
        if examples.shape[1:] != self.support_.x.shape[1:]:
            raise ValueError(
                f"an example of X has shape {tuple(examples.shape[1:])}, and those of fit had "
                f"{tuple(self.support_.x.shape[1:])}; they must be equal"
            )
        with in_turn(self.learner_):
            outputs = [in_full_batch(self.adapted_, rows) for rows in examples.split(AT_ONCE)]
        return torch.cat(outputs)

    def _check_features(self, x: Any) -> None:
        expected, found = getattr(self, "n_features_in_", None), row_length(x)
        if None not in (expected, found) and found != expected:
            # In scikit-learn's words, which its tools look for.
            raise ValueError(
                f"X has {found} features, but {type(self).__name__} is expecting {expected} "
                f"features as input"
            )


def read(reader: Reader, learner: Learner, x: Any) -> Tensor:
    """Examples as the learner's model takes them."""
    first = next(learner.parameters())
    return reader.read(x).to(first.device, first.dtype)


def row_length(x: Any) -> int | None:
    """The number of columns, where X is a table.

    >>> row_length(np.zeros((3, 7)))
    7
    """
    shape: tuple[int, ...] = tuple(getattr(x, "shape", ()))
    return int(shape[1]) if len(shape) == 2 else None


def picture_shape(model: nn.Module) -> tuple[int, int] | None:
    """Channels and size of the pictures that a model takes, if it says so."""
    channels, size = (getattr(model, name, None) for name in ("channels", "image_size"))
    return (channels, size) if isinstance(channels, int) and isinstance(size, int) else None


def seed_of(random_state: Any) -> int | None:
    """A seed for the method's own noise, as scikit-learn's users give it.

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


def in_full_batch(adapted: Adapted, rows: Tensor) -> Tensor:
    """Outputs for up to `AT_ONCE` examples, on the CPU."""
    empty = rows.new_zeros(AT_ONCE - len(rows), *rows.shape[1:])
    return adapted(torch.cat([rows, empty]))[: len(rows)].cpu()
