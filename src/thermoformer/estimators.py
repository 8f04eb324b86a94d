"""Estimators for scikit-learn: the theory of attention paths with `fit`, `predict`, `predict_proba` and `score`."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from scipy.special import log_ndtr, ndtr

from ._validation import fail
from .learning import Architecture, PathFeatures, Prediction, Solution, gaussian_process, solve

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    raise ImportError("thermoformer.estimators needs scikit-learn: pip install 'thermoformer[sklearn]'") from error

__all__ = ["AttentionPathClassifier", "AttentionPathRegressor"]


class _AttentionPaths(BaseEstimator):
    """What both estimators share: inputs as path features, and the theory fitted to numbers."""

    def __init__(self, *, heads: Any = None, width: Any = 100, temperature: float = 0.1, variances: Any = 1.0) -> None:
        self.heads, self.width, self.temperature, self.variances = heads, width, temperature, variances

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags

    def _checked(self, X: Any, y: Any = "no_validation", **checks: Any) -> Any:
        """X as float64, and y if there is one, after scikit-learn's own checks."""
        given: Any = X.values if isinstance(X, PathFeatures) else X
        return validate_data(self, given, y, dtype=np.float64, allow_nd=True, **checks)

    def _fit(self, X: np.ndarray, labels: np.ndarray) -> Self:
        usual = X.shape[1] if X.ndim == 3 else 1
        heads = (usual,) if self.heads is None else tuple(np.atleast_1d(self.heads).tolist())
        infinite = np.ndim(self.width) == 0 and self.width == np.inf
        outputs = labels.shape[1] if labels.ndim == 2 else 1
        # The Gaussian process does not depend on the width.
        arch = Architecture(heads, 1 if infinite else self.width, self.variances, outputs=outputs)
        theory = gaussian_process if infinite else solve
        self.solution_: Solution = theory(arch, _features(X, arch), labels, temperature=self.temperature)
        return self

    def _predicted(self, X: Any) -> Prediction:
        check_is_fitted(self)
        return self.solution_.predict(_features(self._checked(X, reset=False), self.solution_.architecture))


def _features(X: np.ndarray, arch: Architecture) -> PathFeatures:
    """Attentioned inputs, also from rows that hold those of all paths one after another."""
    if X.ndim == 2:
        if X.shape[1] % arch.paths:
            expected = f"a multiple of {arch.paths}, the paths of heads {arch.heads}"
            raise fail("X", f"{X.shape[1]} features", expected)
        X = X.reshape(len(X), arch.paths, -1)
    return PathFeatures.from_attentioned_inputs(X)


class AttentionPathClassifier(ClassifierMixin, _AttentionPaths):
    """A classifier by the theory of attention paths: `solve` on labels ±1, with one output per class beyond two.

    Arguments:
        heads: heads of each layer, (H_1..H_L), whose product is the number of paths. Default: one layer with a head per
            path of X [example, path, feature], and with one head for X [example, feature].
        width: N, one number or one per layer and one for the readout; `numpy.inf` for the Gaussian process.
        temperature: τ, the variance of the noise on the labels.
        variances: σ0², σ1²..σL², σa², prior variances of the weights; one number for all.

    Fields, once fitted:
        solution_: the `Solution`, with the order parameter between paths.
        classes_: the classes, in ascending order.
        n_features_in_: of X.

    Example:
        >>> from sklearn.model_selection import GridSearchCV
        >>> X = np.random.default_rng(0).normal(size=(60, 16))
        >>> y = np.where(X[:, 0] + X[:, 1] > 0, "yes", "no")
        >>> search = GridSearchCV(AttentionPathClassifier(heads=(2,)), {"width": [10, np.inf]}, cv=2).fit(X, y)
        >>> bool(search.score(X, y) > 0.9), search.best_estimator_.solution_.order_parameter.shape
        (True, (2, 2))
    """

    def fit(self, X: Any, y: Any) -> Self:
        """Finds the order parameter on training examples.

        Arguments:
            X: attentioned inputs [example, path, feature], or the same as [example, path · feature], the features of
                path 0 first; or `PathFeatures`, of which searches and cross-validation need the `values`.
            y: classes [example].
        """
        X, y = self._checked(X, y)
        check_classification_targets(y)
        self.classes_, places = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise fail("y", f"1 class, {self.classes_.tolist()[0]!r}", "two classes or more")
        signs = 2.0 * np.eye(len(self.classes_))[places] - 1
        return self._fit(X, signs[:, 1] if len(self.classes_) == 2 else signs)

    def decision_function(self, X: Any) -> np.ndarray:
        """The mean output over its standard deviation, that of the labels included, [example], or [example, class].

        Arguments:
            X: as in `fit`.
        """
        prediction = self._predicted(X)
        return prediction.mean / np.sqrt(prediction.variance + self.solution_.temperature)

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities of the classes, [example, class].

        A label is Gaussian with the predicted mean, and with the predicted variance and the temperature as its
        variance; the probability of a class is that of a positive label, Φ(mean/√(variance + temperature)). With more
        than two classes these are divided by their sum.

        Arguments:
            X: as in `fit`.
        """
        decided = self.decision_function(X)
        if decided.ndim == 1:
            return ndtr(np.stack([-decided, decided], axis=1))
        # Relative to the largest, so that a sum of tiny numbers is not zero.
        logarithms = log_ndtr(decided)
        shares = np.exp(logarithms - logarithms.max(axis=1, keepdims=True))
        return shares / shares.sum(axis=1, keepdims=True)

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of each example, [example].

        Arguments:
            X: as in `fit`.
        """
        decided = self.decision_function(X)
        return self.classes_[(decided > 0).astype(int) if decided.ndim == 1 else decided.argmax(axis=1)]


class AttentionPathRegressor(RegressorMixin, _AttentionPaths):
    """A regressor by the theory of attention paths: `solve` on the targets, with several outputs for several of them.

    The theory has no intercept: subtract the mean of targets that are far from zero, for instance by scikit-learn's
    `TransformedTargetRegressor`.

    Arguments:
        heads, width, temperature, variances: as in `AttentionPathClassifier`.

    Fields, once fitted:
        solution_, n_features_in_: as in `AttentionPathClassifier`.

    Example:
        >>> X = np.random.default_rng(0).normal(size=(60, 16))
        >>> model = AttentionPathRegressor(heads=(2,), width=10).fit(X[:40], X[:40, 0])
        >>> mean, deviation = model.predict(X[40:], return_std=True)
        >>> bool(model.score(X[40:], X[40:, 0]) > 0.9), deviation.shape
        (True, (20,))
    """

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Any, y: Any) -> Self:
        """Finds the order parameter on training examples.

        Arguments:
            X: as in `AttentionPathClassifier.fit`.
            y: targets [example], or [example, target].
        """
        X, y = self._checked(X, y, y_numeric=True, multi_output=True)
        return self._fit(X, y.astype(np.float64))

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The mean of the targets, [example] or [example, target], and their standard deviation without noise.

        Arguments:
            X: as in `fit`.
            return_std: whether the standard deviation comes too, as a second array; the temperature is not part of it.
        """
        prediction = self._predicted(X)
        return (prediction.mean, np.sqrt(prediction.variance)) if return_std else prediction.mean
