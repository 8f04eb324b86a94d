"""Estimators in scikit-learn: its own checks, its searches, and the numbers of the library."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from thermoformer.estimators import AttentionPathClassifier, AttentionPathRegressor
from thermoformer.learning import Architecture, PathFeatures, gaussian_process, solve

XI = np.random.default_rng(0).normal(size=(50, 2, 8))
FLAT, Y = XI.reshape(50, 16), np.sign(XI[:, 0, 0])
TRAIN, TEST = slice(0, 30), slice(30, 50)
WORDS = np.where(Y > 0, "up", "down")


@pytest.mark.parametrize("kind", [AttentionPathClassifier, AttentionPathRegressor])
def test_checks_of_scikit_learn(kind):
    # At infinite width, since the checks have data of many shapes, each of which compiles programs.
    results = check_estimator(kind(width=np.inf), on_skip=None)
    assert len(results) > 40 and {one["status"] for one in results} == {"passed", "skipped"}
    assert [one["check_name"] for one in results if one["status"] == "skipped"] == ["check_array_api_input"]


@pytest.fixture(scope="module")
def solution():
    features = PathFeatures.from_attentioned_inputs(XI[TRAIN])
    return solve(Architecture((2,), 10), features, Y[TRAIN], temperature=0.1)


@pytest.mark.parametrize(
    "X", [XI, FLAT, PathFeatures.from_attentioned_inputs(XI), PathFeatures.from_attentioned_inputs(XI).values]
)
def test_a_classifier_is_the_theory_of_labels_of_either_sign(X, solution):
    model = AttentionPathClassifier(heads=(2,), width=10).fit(X[TRAIN], WORDS[TRAIN])
    np.testing.assert_array_equal(model.solution_.order_parameter, solution.order_parameter)
    prediction = solution.predict(PathFeatures.from_attentioned_inputs(XI[TEST]))
    assert model.score(X[TEST], WORDS[TEST]) == prediction.accuracy(Y[TEST])
    probabilities = norm.sf(0, prediction.mean, np.sqrt(prediction.variance + 0.1))
    assert model.classes_.tolist() == ["down", "up"]
    np.testing.assert_allclose(model.predict_proba(X[TEST])[:, 1], probabilities, rtol=1e-12)
    np.testing.assert_allclose(model.predict_proba(X[TEST]).sum(axis=1), 1)


def test_heads_are_the_paths_of_x_by_default():
    model = AttentionPathClassifier(width=10)
    assert model.fit(XI[TRAIN], Y[TRAIN]).solution_.architecture.heads == (2,)
    assert model.fit(FLAT[TRAIN], Y[TRAIN]).solution_.architecture.heads == (1,)


def test_a_regressor_is_the_theory_at_any_width_and_for_several_targets(solution):
    model = AttentionPathRegressor(heads=2, width=10).fit(FLAT[TRAIN], Y[TRAIN])
    mean, deviation = model.predict(FLAT[TEST], return_std=True)
    expected = solution.predict(PathFeatures.from_attentioned_inputs(XI[TEST]))
    np.testing.assert_array_equal(mean, expected.mean)
    np.testing.assert_array_equal(deviation, np.sqrt(expected.variance))
    features = PathFeatures.from_attentioned_inputs(XI)
    targets = XI[:, 0, :2]
    wide = clone(model).set_params(width=np.inf).fit(FLAT[TRAIN], targets[TRAIN])
    limit = gaussian_process(Architecture((2,), 1, outputs=2), features[TRAIN], targets[TRAIN], temperature=0.1)
    np.testing.assert_array_equal(wide.predict(FLAT[TEST]), limit.predict(features[TEST]).mean)
    assert wide.score(FLAT[TEST], targets[TEST]) > 0.8


def test_several_classes_have_probabilities_that_agree_with_what_is_predicted():
    classes = np.digitize(XI[:, 0, 0], [-0.5, 0.5])
    model = AttentionPathClassifier(heads=(2,), width=np.inf).fit(XI[TRAIN], classes[TRAIN])
    probabilities = model.predict_proba(XI[TEST])
    assert probabilities.shape == model.decision_function(XI[TEST]).shape == (20, 3)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)
    np.testing.assert_array_equal(probabilities.argmax(axis=1), model.predict(XI[TEST]))
    # The chance is 1/3.
    assert model.score(XI[TEST], classes[TEST]) > 0.5
    # Far away a class is certain, or all are as improbable as numbers go.
    assert np.isfinite(model.predict_proba(1e6 * XI[TEST])).all()


def test_searches_and_validation_of_scikit_learn():
    pipeline = make_pipeline(StandardScaler(), AttentionPathClassifier(heads=(2,)))
    grid = {"attentionpathclassifier__width": [10, np.inf], "attentionpathclassifier__temperature": [0.1, 10.0]}
    search = GridSearchCV(pipeline, grid, cv=2, error_score="raise").fit(FLAT[TRAIN], WORDS[TRAIN])
    assert search.best_params_["attentionpathclassifier__temperature"] == 0.1
    scores = cross_val_score(AttentionPathClassifier(width=10), XI[TRAIN], Y[TRAIN], cv=2, error_score="raise")
    assert scores.shape == (2,) and scores.mean() > 0.5


@pytest.mark.parametrize(
    ("model", "X", "y", "message"),
    [
        (AttentionPathClassifier(heads=(3,)), FLAT, Y, r"X: got 16 features; expected a multiple of 3, the paths of"),
        (AttentionPathClassifier(heads=(3,)), XI, Y, "features: got 2 paths; expected 3"),
        (AttentionPathClassifier(width=-1), XI, Y, "widths: got -1"),
        (AttentionPathClassifier(temperature=-1), XI, Y, "temperature: got -1"),
        (AttentionPathClassifier(), XI, np.ones(50), r"y: got 1 class, 1\.0; expected two classes"),
        (AttentionPathRegressor(), XI[None], [0.0], r"got shape \(1, 50, 2, 8\); expected 3 axes"),
    ],
)
def test_what_is_wrong_is_named(model, X, y, message):
    with pytest.raises(ValueError, match=message):
        model.fit(X, y)


def test_examples_of_another_shape_are_refused():
    model = AttentionPathRegressor(width=np.inf).fit(XI[TRAIN], Y[TRAIN])
    for X, message in ((XI[:, :1], "X has 1 features, but"), (XI[:, :, :7], "got .*; expected")):
        with pytest.raises(ValueError, match=message):
            model.predict(X)
