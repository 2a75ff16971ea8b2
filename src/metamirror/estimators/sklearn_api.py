"""scikit-learn's conventions without scikit-learn: its tools ask for methods, not a base class."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, Self

import numpy as np


@dataclass(eq=False, repr=False)
class Estimator:
    """Parameters are the fields of a dataclass, kept as they were given and checked by `fit`.

    `sklearn.base.clone`, pipelines and cross-validation need no more than this and the tags below,
    for which alone scikit-learn is imported, and only when it asks.
    """

    _estimator_type: ClassVar[Literal["classifier", "regressor"]]
    """What scikit-learn before 1.6 asks for in place of tags."""

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name.

        Args:
            deep: as scikit-learn asks; nothing here contains estimators.
        """
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def set_params(self, **params: Any) -> Self:
        """Change parameters; they count at the next `fit`."""
        known = list(self.get_params())
        for name, value in params.items():
            if name not in known:
                raise ValueError(
                    f"Invalid parameter {name!r} for estimator {type(self).__name__}: choose from "
                    f"{', '.join(known)}"
                )
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        given = [(field.name, getattr(self, field.name), field.default) for field in fields(self)]
        changed = [
            f"{name}={value!r}" for name, value, usual in given if repr(value) != repr(usual)
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
    """Refuse what is neither True nor False; searches hand in numpy's."""
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"{name} is {value!r}; give True or False")


def not_fitted(estimator: object) -> Exception:
    """Return scikit-learn's error for an estimator that is not fitted, or a ValueError without it.

    scikit-learn's is a ValueError too.
    """
    words = f"This {type(estimator).__name__} is not fitted yet: call fit(X, y) first"
    try:
        from sklearn.exceptions import NotFittedError
    except ImportError:
        return ValueError(words)
    error: Exception = NotFittedError(words)
    return error
