"""What a few-shot classifier and a few-shot regressor have in common."""

from __future__ import annotations

import os
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from metamirror.core.learner import Learner
from metamirror.core.tasks import Batch
from metamirror.estimators import model_file
from metamirror.estimators.fitting import Adapt, FittedModel, adapt, seed_of
from metamirror.estimators.inputs.images import Reader, reader_for
from metamirror.estimators.sklearn_api import Estimator, not_fitted
from metamirror.estimators.starts import Start, open_start
from metamirror.training.device import choose_device


@dataclass(eq=False, repr=False)
class FewShotEstimator(Estimator):
    """Adapts a start to a support set, which it keeps, and predicts with the adapted model."""

    start: Start
    _: KW_ONLY
    steps: int | None = None
    lr: float | None = None
    early_stopping: bool = False
    tol: float = 1e-3
    invert: bool = False
    ink: bool = False
    device: str = "auto"
    random_state: Any = None

    # Programs that only predict switch gradients off for good; adapting needs them.
    @torch.inference_mode(False)
    def fit(self, X: Any, y: Any) -> Self:
        """Adapt the start to examples.

        Args:
            X: the examples.
            y: a label for each, or for a regressor a number or a row of numbers.
        """
        learner = open_start(self.start).to(choose_device(self.device))
        return self._adapt(learner, reader_for(learner.model, self.invert, self.ink), X, y, None)

    @torch.inference_mode(False)
    def partial_fit(self, X: Any, y: Any) -> Self:
        """Add examples to those there are, and adapt to all of them, again from the start."""
        if not self.__sklearn_is_fitted__():
            return self.fit(X, y)
        self._check_features(X)
        return self._adapt(self.learner_, self.fitted_.reader, X, y, self.support_)

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the prediction for each example."""
        raise NotImplementedError

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the adapted model into one safetensors file, from which `load` restores it.

        The file holds the start, the adapted parameters, the statistics and the examples (to go
        on from with `partial_fit`), and no pickle.

        Args:
            path: the file; an existing one is replaced in one step, or left as it was.
        """
        model_file.write(Path(path), fitted_model(self), self.get_params())

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        model: nn.Module | None = None,
        device: str = "auto",
    ) -> Self:
        """Return an adapted model from a file that `save` wrote; it predicts the same bits.

        Args:
            path: the file.
            model: needed where the start was built around a class of the user's own.
            device: auto (CUDA, MPS or CPU, in this order), or one of them.
        """
        fitted, params = model_file.read(Path(path), model, device)
        kind = "Regressor" if fitted.classes is None else "Classifier"
        if kind.lower() != cls._estimator_type:
            raise ValueError(f"{path} holds a FewShot{kind}: use FewShot{kind}.load")
        return cls.of(fitted, params)

    @classmethod
    def of(cls, fitted: FittedModel, params: dict[str, Any]) -> Self:
        """Return an estimator with these parameters that is fitted already."""
        found = cls(**params)
        found._keep(fitted)
        return found

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "fitted_")

    def _adapt(
        self, learner: Learner, reader: Reader, X: Any, y: Any, before: Batch | None
    ) -> Self:
        """Adapt, and only then forget the earlier fit."""
        run = partial(
            adapt,
            learner,
            steps=self.steps,
            lr=self.lr,
            seed=seed_of(self.random_state),
            early_stopping=self.early_stopping,
            tol=self.tol,
        )
        support, facts = self._support(learner, _read(reader, learner, X), y, before, run)
        self._keep(FittedModel(learner, reader, support, *run(support), row_length(X), **facts))
        return self

    def _support(
        self, learner: Learner, x: Tensor, y: Any, before: Batch | None, run: Adapt
    ) -> tuple[Batch, dict[str, Any]]:
        """Return the support set, earlier examples first, and the other facts of `FittedModel`."""
        raise NotImplementedError

    def _keep(self, fitted: FittedModel) -> None:
        self.fitted_ = fitted
        self.learner_, self.adapted_ = fitted.learner, fitted.adapted
        self.support_ = fitted.support
        self.losses_, self.n_steps_ = fitted.losses, len(fitted.losses) - 1
        self.adaptation_seconds_ = fitted.seconds
        if fitted.n_features is not None:
            self.n_features_in_ = fitted.n_features
        elif hasattr(self, "n_features_in_"):
            del self.n_features_in_

    def _outputs(self, X: Any) -> Tensor:
        """Return the adapted model's outputs, on the CPU."""
        fitted = fitted_model(self)
        self._check_features(X)
        x = _read(fitted.reader, fitted.learner, X)
        expected = fitted.support.x.shape[1:]
        if x.shape[1:] != expected:
            raise ValueError(
                f"an example of X has shape {tuple(x.shape[1:])}, and those of fit had "
                f"{tuple(expected)}; they must be equal"
            )
        return fitted.outputs(x)

    def _check_features(self, X: Any) -> None:
        expected, found = self.fitted_.n_features, row_length(X)
        if None not in (expected, found) and found != expected:
            # In scikit-learn's words, which its tools look for.
            raise ValueError(
                f"X has {found} features, but {type(self).__name__} is expecting {expected} "
                f"features as input"
            )


def fitted_model(estimator: FewShotEstimator) -> FittedModel:
    """Return what an estimator was fitted to, or raise scikit-learn's error."""
    if not estimator.__sklearn_is_fitted__():
        raise not_fitted(estimator)
    return estimator.fitted_


def _read(reader: Reader, learner: Learner, x: Any) -> Tensor:
    first = next(learner.parameters())
    return reader.read(x).to(first.device, first.dtype)


def row_length(x: Any) -> int | None:
    """Return the number of columns, where X is a table.

    >>> row_length(torch.zeros(3, 7))
    7
    """
    shape: tuple[int, ...] = tuple(getattr(x, "shape", ()))
    return int(shape[1]) if len(shape) == 2 else None
