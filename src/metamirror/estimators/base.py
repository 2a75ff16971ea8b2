"""What a few-shot classifier and a few-shot regressor have in common.

scikit-learn's tools ask for methods and not for its base classes, so that it need not be installed.
"""

import inspect
import os
import warnings
from dataclasses import KW_ONLY, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from torch import Tensor, nn

from metamirror.core.files import write_atomically
from metamirror.core.learner import Learner
from metamirror.core.tasks import Batch
from metamirror.estimators import model_file
from metamirror.estimators.backbones.backbone import Backbone
from metamirror.estimators.backbones.opening import open_backbone
from metamirror.estimators.backbones.tokens import Tokens
from metamirror.estimators.familiarity import UnfamiliarExamplesWarning, unfamiliar
from metamirror.estimators.fitting import Adapt, FittedModel, adapt, placed, seed_of
from metamirror.estimators.inputs.images import Reader, image_shape, reader_for
from metamirror.estimators.inputs.numbers import Numbers
from metamirror.estimators.starts import Start, backbone_of, open_start, ridge_start, shipped_names
from metamirror.training.device import choose_device

OURS = (str(Path(__file__).parent), str(Path(torch.__file__).parent))


@dataclass(eq=False, repr=False)
class FewShotEstimator:
    """Adapts a start to a support set; the fields are kept as given, and checked by `fit`."""

    # What scikit-learn before 1.6 asks for in place of tags.
    _estimator_type: ClassVar[Literal["classifier", "regressor"]]

    start: Start = None
    backbone: Any = None
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
        start, learner, reader, x = self._opened(X)
        self._adapt(learner, reader, x, y, None, row_length(X))
        _warn_if_unfamiliar(start, reader, X, x)
        return self

    @torch.inference_mode(False)
    def partial_fit(self, X: Any, y: Any) -> Self:
        """Add examples to those there are, and adapt to all of them, again from the start."""
        if not self.__sklearn_is_fitted__():
            return self.fit(X, y)
        self._check_features(X)
        learner, reader = self.learner_, self.fitted_.reader
        x = placed(reader.read(X), learner)
        self._adapt(learner, reader, x, y, self.support_, row_length(X))
        _warn_if_unfamiliar(self.start, reader, X, x)
        return self

    def _open_backbone(self) -> Reader | None:
        own = None if backbone_of(self.start) is None else str(self.start)
        if self.backbone is None and own is None:
            return None
        for name in ("invert", "ink"):
            if getattr(self, name):
                raise ValueError(f"{name} is for starts that take images: leave it out")
        return open_backbone(own if self.backbone is None else self.backbone)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the adapted model, its start and its examples into one safetensors file for `load`.

        Args:
            path: the file; an existing one is replaced in one step, or left as it was.
        """
        write_atomically(Path(path), model_file.pack(fitted_model(self), self.get_params()))

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        model: nn.Module | None = None,
        backbone: Any = None,
        device: str = "auto",
    ) -> Self:
        """Return an adapted model from a file that `save` wrote; it predicts the same bits.

        Args:
            path: the file.
            model: needed where the start was built around a class of the user's own.
            backbone: needed where it was no ONNX file, run or start, or is elsewhere now.
            device: auto (CUDA, MPS or CPU, in this order), or one of them.
        """
        fitted, params = model_file.read(Path(path), model, device, backbone)
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

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name; `deep` changes nothing, as none is an estimator."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def set_params(self, **params: Any) -> Self:
        """Change parameters; they count at the next `fit`."""
        known = self.get_params()
        for name, value in params.items():
            if name not in known:
                raise ValueError(
                    f"Invalid parameter {name!r} for estimator {type(self).__name__}: choose from "
                    f"{', '.join(known)}"
                )
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        given = [(repr(getattr(self, field.name)), field) for field in fields(self)]
        changed = [f"{field.name}={now}" for now, field in given if now != repr(field.default)]
        return f"{type(self).__name__}({', '.join(changed)})"

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import ClassifierTags, InputTags, RegressorTags, Tags, TargetTags

        classifier = self._estimator_type == "classifier"
        return Tags(
            estimator_type=self._estimator_type,
            target_tags=TargetTags(required=True, single_output=True, multi_output=not classifier),
            transformer_tags=None,
            # A handful of examples of any data set is no training set for checks of accuracy.
            classifier_tags=ClassifierTags(poor_score=True) if classifier else None,
            regressor_tags=None if classifier else RegressorTags(poor_score=True),
            input_tags=InputTags(two_d_array=True, three_d_array=True),
        )

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "fitted_")

    def _opened(self, X: Any) -> tuple[Start, Learner, Reader, Tensor]:
        """Return the start, its learner, what reads its examples, and these examples."""
        backbone = self._open_backbone()
        rows = X if backbone is None else backbone.read(X)
        start = self._usual_start(rows) if self.start is None else self.start
        learner = open_start(start).to(choose_device(self.device))
        reader = backbone or reader_for(learner.model, self.invert, self.ink)
        x = placed(reader.read(X) if backbone is None else rows, learner)
        if backbone is not None and image_shape(learner.model):
            raise ValueError(
                f"the start takes images, and the backbone gives rows of {x.shape[1]} numbers: "
                f"give a start that was trained on them (metamirror embed, then train), or none"
            )
        return start, learner, reader, x

    def _run(self, learner: Learner) -> Adapt:
        own = {name: getattr(self, name) for name in ("steps", "lr", "early_stopping", "tol")}
        return partial(adapt, learner, **own, seed=seed_of(self.random_state))

    def _adapt(
        self,
        learner: Learner,
        reader: Reader,
        x: Tensor,
        y: Any,
        before: Batch | None,
        columns: int | None,
    ) -> Self:
        """Adapt, and only then forget the earlier fit."""
        # Texts differ in length, and are padded by whoever has made tokens of them.
        columns = None if isinstance(reader, Tokens) else columns
        run = self._run(learner)
        support, facts = self._support(learner, x, y, before, run)
        self._keep(FittedModel(learner, reader, support, *run(support), columns, **facts))
        return self

    def _usual_start(self, X: Any) -> Start:
        """Return what is adapted where no start is given: for rows of numbers, ridge regression."""
        if row_length(X) is None:
            raise ValueError(
                f"no start is given, and X holds no rows of numbers: name one, such as "
                f"{', '.join(shipped_names())}, or a run folder"
            )
        return ridge_start(Numbers().read(X), directions=self._estimator_type == "classifier")

    def _support(
        self, learner: Learner, x: Tensor, y: Any, before: Batch | None, run: Adapt
    ) -> tuple[Batch, dict[str, Any]]:
        """Return the support set, earlier examples first, and the other facts of `FittedModel`."""
        raise NotImplementedError

    def _keep(self, fitted: FittedModel) -> None:
        self.fitted_ = fitted
        self.learner_, self.adapted_, self.support_ = fitted.learner, fitted.adapted, fitted.support
        self.losses_, self.n_steps_ = fitted.losses, len(fitted.losses) - 1
        self.adaptation_seconds_ = fitted.seconds
        if fitted.classes is not None and fitted.temperature is not None:
            self.classes_, self.temperature_ = fitted.classes, fitted.temperature
            self.held_out_accuracy_ = fitted.held_out_accuracy
        self.__dict__.pop("n_features_in_", None)
        if fitted.n_features_in is not None:
            self.n_features_in_ = fitted.n_features_in

    def _outputs(self, X: Any) -> Tensor:
        """Return the adapted model's outputs, on the CPU."""
        fitted = fitted_model(self)
        self._check_features(X)
        x = placed(fitted.reader.read(X), fitted.learner)
        found, expected = tuple(x.shape[1:]), tuple(fitted.support.x.shape[1:])
        if found != expected:
            raise ValueError(
                f"an example of X has shape {found}, and those of fit had {expected}; they must be "
                f"equal"
            )
        return fitted.outputs(x)

    def _check_features(self, X: Any) -> None:
        expected, found = self.fitted_.n_features_in, row_length(X)
        if None not in (expected, found) and found != expected:
            # In scikit-learn's words, which its tools look for.
            raise ValueError(
                f"X has {found} features, but {type(self).__name__} is expecting {expected} "
                f"features as input"
            )


def _warn_if_unfamiliar(start: Start, reader: Reader, X: Any, x: Tensor) -> None:
    """Warn whoever fits a start to examples that do not look like what it was trained on."""
    if isinstance(reader, Backbone) and backbone_of(start):
        # What it was trained on were images, too.
        x = reader.images.read(X)
    if words := unfamiliar(start, x):
        # At the line that gave them: neither a method of ours nor its decorator.
        files = (frame.filename for frame in inspect.stack(0))
        level = next(i for i, file in enumerate(files, 1) if not file.startswith(OURS))
        warnings.warn(words, UnfamiliarExamplesWarning, stacklevel=level)


def fitted_model(estimator: FewShotEstimator) -> FittedModel:
    """Return what an estimator was fitted to, or raise scikit-learn's error, a ValueError."""
    if estimator.__sklearn_is_fitted__():
        return estimator.fitted_
    words = f"This {type(estimator).__name__} is not fitted yet: call fit(X, y) first"
    try:
        from sklearn.exceptions import NotFittedError
    except ImportError:
        raise ValueError(words) from None
    raise NotFittedError(words)


def row_length(x: Any) -> int | None:
    """Return the number of columns, where X is a table.

    >>> row_length(torch.zeros(3, 7)), row_length([[1, 2], [3, 4]])
    (7, 2)
    """
    if isinstance(x, list | tuple) and x and all(isinstance(row, list | tuple) for row in x):
        lengths = {len(row) for row in x if not any(isinstance(v, list | tuple) for v in row)}
        return lengths.pop() if len(lengths) == 1 else None
    if hasattr(x, "__array__") and not hasattr(x, "shape"):
        x = np.asarray(x)
    shape: tuple[int, ...] = tuple(getattr(x, "shape", ()))
    return int(shape[1]) if len(shape) == 2 else None
