"""Adapted models of either kind, from files."""

from __future__ import annotations

from pathlib import Path

from metamirror.estimators import model_file
from metamirror.estimators.classifier import FewShotClassifier
from metamirror.estimators.regressor import FewShotRegressor


def load_model(path: Path) -> FewShotClassifier | FewShotRegressor:
    """Return the classifier or regressor that a file holds."""
    fitted, params = model_file.read(path)
    kind = FewShotRegressor if fitted.classes is None else FewShotClassifier
    return kind.of(fitted, params)
