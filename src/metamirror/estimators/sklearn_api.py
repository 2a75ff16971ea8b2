"""scikit-learn's habits, without scikit-learn: its tools ask for methods, not for a base class."""

from __future__ import annotations

import inspect
from typing import Any, Literal, Self

import numpy as np


class Estimator:
    """Parameters are the arguments of `__init__`, kept as they were given and checked by `fit`.

    `sklearn.base.clone`, pipelines and cross-validation need no more than this and the tags below,
    for which alone scikit-learn is imported, and only when it asks.
    """

    _estimator_type: Literal["classifier", "regressor"]
    """What scikit-learn before 1.6 asks for in place of tags."""

    @classmethod
    def _names(cls) -> list[str]:
        parameters = inspect.signature(cls).parameters.values()
        return [p.name for p in parameters]

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters by name.

        Args:
            deep: as scikit-learn asks; nothing here contains estimators.
        """
        return {name: getattr(self, name) for name in self._names()}

    def set_params(self, **params: Any) -> Self:
        """Changes parameters; they count at the next `fit`."""
        known = self._names()
        for name, value in params.items():
            if name not in known:
                raise ValueError(
                    f"Invalid parameter {name!r} for estimator {type(self).__name__}: choose from "
                    f"{', '.join(known)}"
                )
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        usual = inspect.signature(type(self)).parameters
        changed = [
            f"{name}={value!r}"
            for name, value in self.get_params().items()
            if value is not usual[name].default and repr(value) != repr(usual[name].default)
        ]
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


def check_flag(name: str, value: Any) -> None:
    """Refuses what is neither True nor False; searches hand in numpy's."""
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"{name} is {value!r}; give True or False")


def not_fitted(estimator: object) -> Exception:
    """The error for a question that only a fitted estimator can answer: scikit-learn's, if there.

    It is a ValueError in any case.
    """
    words = f"This {type(estimator).__name__} is not fitted yet: call fit(X, y) first"
    try:
        from sklearn.exceptions import NotFittedError
    except ImportError:
        return ValueError(words)
    error: Exception = NotFittedError(words)
    return error
