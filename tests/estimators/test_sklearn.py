"""scikit-learn's own tools and checks, and life without scikit-learn."""

from __future__ import annotations

import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, MinMaxScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import Tensor, nn
from torch.nn import functional as F

import metamirror as mm
from tests.estimators.stripes import start, stripes


class AnyFeatures(nn.Module):
    """A network for up to 64 features, so that scikit-learn's data sets fit into it."""

    def __init__(self, outputs: int):
        super().__init__()
        self.body = nn.Linear(64, 16)
        self.head = nn.Linear(16, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(F.pad(x, (0, 64 - x.shape[1])))))


torch.manual_seed(0)
OF_FEATURES = mm.FewShotClassifier(mm.make_learner("maml", AnyFeatures(8), lr=0.1))
OF_VALUES = mm.FewShotRegressor(mm.make_learner("maml", AnyFeatures(1), lr=0.1))
OF_ROWS, VALUES_OF_ROWS = mm.FewShotClassifier(), mm.FewShotRegressor()
OF_IMAGES = mm.FewShotClassifier("glyphs-maml")

HASHED = "the start is compared by joblib's hash, and torch's tensors do not hash by their values"
COLUMN = "labels are one for each example: (n, 1) is refused with the way out, not reshaped"
OUTPUTS = "the number of outputs is the start's: other numbers are refused with the way out"
ANY_LABEL = "any number of classes is taken, and a number is a label like any other"
NO_IMAGES = "its X is a table of arbitrary numbers, and this start takes images"

EXPECTED = {
    OF_FEATURES: {"check_estimators_overwrite_params": HASHED, "check_supervised_y_2d": COLUMN},
    OF_VALUES: {
        "check_estimators_overwrite_params": HASHED,
        "check_regressor_multioutput": OUTPUTS,
    },
    OF_ROWS: {"check_classifiers_regression_target": ANY_LABEL, "check_supervised_y_2d": COLUMN},
    VALUES_OF_ROWS: {},
    OF_IMAGES: dict.fromkeys(
        [
            "check_fit_score_takes_y",
            "check_estimators_overwrite_params",
            "check_dont_overwrite_parameters",
            "check_estimators_fit_returns_self",
            "check_readonly_memmap_input",
            "check_n_features_in_after_fitting",
            "check_positive_only_tag_during_fit",
            "check_estimators_dtypes",
            "check_dtype_object",
            "check_estimators_empty_data_messages",
            "check_pipeline_consistency",
            "check_estimators_nan_inf",
            "check_estimators_pickle",
            "check_f_contiguous_array_estimator",
            "check_classifier_data_not_an_array",
            "check_classifiers_one_label",
            "check_classifiers_classes",
            "check_estimators_partial_fit_n_features",
            "check_classifiers_train",
            "check_classifiers_regression_target",
            "check_supervised_y_2d",
            "check_methods_sample_order_invariance",
            "check_methods_subset_invariance",
            "check_fit2d_1sample",
            "check_fit2d_1feature",
            "check_dict_unchanged",
            "check_fit_idempotent",
            "check_fit_check_is_fitted",
            "check_n_features_in",
            "check_fit2d_predict1d",
            "check_requires_y_none",
        ],
        NO_IMAGES,
    ),
}


with warnings.catch_warnings():
    # What the checks are here to find out.
    warnings.filterwarnings("ignore", ".* does not inherit from `sklearn.base.BaseEstimator`")
    checks = parametrize_with_checks(
        list(EXPECTED), expected_failed_checks=lambda one: EXPECTED[one], xfail_strict=True
    )


@checks
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


images, labels = stripes(classes=3, each=4)


def test_clones_are_unfitted_and_equal():
    clf = mm.FewShotClassifier(start(), steps=2, calibrate=True).fit(images, labels)
    copy = clone(clf)
    assert not hasattr(copy, "classes_")
    assert (copy.steps, copy.calibrate) == (2, True)
    copy.fit(images, labels)
    np.testing.assert_array_equal(copy.predict_proba(images), clf.predict_proba(images))


def test_parameters_can_be_read_and_set():
    clf = mm.FewShotClassifier("glyphs-maml", steps=3)
    assert clf.get_params()["steps"] == 3
    assert clf.set_params(lr=0.2, steps=None).get_params()["lr"] == 0.2
    assert repr(clf) == "FewShotClassifier(start='glyphs-maml', lr=0.2)"
    with pytest.raises(ValueError, match=r"Invalid parameter 'stepz'.*steps"):
        clf.set_params(stepz=1)


def test_their_kinds_are_known():
    assert is_classifier(mm.FewShotClassifier())
    assert is_regressor(mm.FewShotRegressor())


def test_cross_validation_and_search():
    clf = mm.FewShotClassifier(start(), steps=20)
    scores = cross_val_score(clf, images, np.array(labels), cv=2)
    assert scores.shape == (2,)
    assert scores.mean() > 0.6
    search = GridSearchCV(clf, {"steps": [0, 20]}, cv=2).fit(images, np.array(labels))
    assert search.best_params_ == {"steps": 20}


def test_in_a_pipeline_rows_of_a_table_become_images_where_that_is_said():
    table = images.reshape(len(images), -1).astype(float)
    shaped = FunctionTransformer(lambda x: x.reshape(-1, 28, 28))
    scaled = make_pipeline(
        FunctionTransformer(lambda x: x / 255), shaped, mm.FewShotClassifier(start())
    ).fit(table, labels)
    plain = mm.FewShotClassifier(start()).fit(images, labels)
    np.testing.assert_allclose(scaled.predict_proba(table), plain.predict_proba(images), atol=1e-5)
    ranged = make_pipeline(MinMaxScaler(clip=True), shaped, mm.FewShotClassifier(start()))
    assert ranged.fit(table, labels).predict(table).shape == (12,)


def test_embeddings_as_long_as_an_image_are_not_taken_for_one():
    learner = mm.make_learner("maml", mm.models.Conv4(ways=3, width=4, channels=1, image_size=32))
    embeddings = np.random.default_rng(0).uniform(size=(6, 1024)).astype(np.float32)
    with pytest.raises(ValueError, match=r"1024 values.*X\.reshape\(-1, 32, 32\).*takes numbers"):
        mm.FewShotClassifier(learner).fit(embeddings, [0, 1, 2, 0, 1, 2])
    numbers = mm.FewShotClassifier(mm.make_learner("maml", mm.models.MLP(1024, 3)))
    assert numbers.fit(embeddings, [0, 1, 2, 0, 1, 2]).n_features_in_ == 1024
    splits = ["train", "train", "test"] * 2
    stream = mm.tasks((embeddings, [0, 1, 2] * 2), ways=2, shots=1, queries=1, splits=splits)
    assert stream.example_shape == (1024,)


def test_scikit_learn_is_not_needed():
    code = """
import sys
import warnings
sys.modules["sklearn"] = None  # an import of it fails
import numpy as np, metamirror as mm
clf = mm.FewShotClassifier("glyphs-maml", steps=1)
try:
    clf.predict(np.zeros((1, 28, 28)))
except ValueError as error:
    print(error)
x = np.random.default_rng(0).random((4, 28, 28))
print(clf.fit(x, list("abab")).predict(x).shape, clf.get_params()["steps"])
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "not fitted yet" in found.stdout
    assert "(4,) 1" in found.stdout
