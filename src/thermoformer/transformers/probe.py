"""A linear probe: multinomial logistic regression on fixed features."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.optimize
import scipy.special
import torch

from .._validation import fail, one_of, positive_number, real_array
from .data import checked_labels
from .readout_evidence import readout_evidence

PENALTY = "auto"
PENALTIES = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001)
FOLDS = 5

# Spread of a feature relative to its size, below which it is rounding of float32.
_ROUNDING = 1e-6


class LinearProbe:
    """Multinomial logistic regression with an L2 penalty, fitted by L-BFGS on all examples at once, in float64.

    Minimises mean_i −ln softmax(W x_i + b)[y_i] + (penalty / 2) Σ W² over W and b, with the features x standardised by
    mean and spread of the training set. The fit starts at zero and is deterministic.

    Arguments:
        penalty: of the weights; 1 / (C n) in terms of the strength C of other libraries, with n examples. The default
            "auto" chooses among `PENALTIES` by the log-likelihood in five-fold cross-validation on the training set.
            "unit" is 1 / n, the penalty of a standard normal prior, which is weak for many noisy features.

    Example:
        >>> import numpy as np
        >>> features = np.array([[0.0, 1.0], [0.2, 1.5], [2.0, 1.2], [2.2, 0.9]])
        >>> probe = LinearProbe().fit(features, [0, 0, 1, 1])
        >>> probe.accuracy([[0.1, 1.0], [2.1, 1.0]], [0, 1]), LinearProbe("unit").fit(features, [0, 0, 1, 1]).penalty
        (1.0, 0.25)
    """

    def __init__(self, penalty: float | str = PENALTY) -> None:
        if isinstance(penalty, str):
            one_of("penalty", penalty, ("unit", "auto"))
        else:
            positive_number("penalty", penalty)
        self._given = penalty
        self._penalty: float | None = None
        self._weights: np.ndarray | None = None

    @property
    def penalty(self) -> float:
        """The penalty of the fit, given or chosen."""
        if self._penalty is None:
            raise fail("penalty", "none yet", "a fitted probe: it is set in fit")
        return self._penalty

    def fit(self, features: Any, labels: Any, *, classes: int | None = None) -> LinearProbe:
        """Learns from labelled features, and returns the probe itself.

        Arguments:
            features: [example, feature].
            labels: whole numbers [example] from 0.
            classes: how many there are; by default one more than the largest label.
        """
        x = real_array("features", features, ("example", "feature"))
        y, count = checked_labels(labels, len(x), classes)
        if len(np.unique(y)) < 2:
            raise fail("labels", "one class only", "two classes or more to tell apart")
        if self._given == "auto":
            self._penalty = _chosen_penalty(x, y, count)
        else:
            self._penalty = 1.0 / len(x) if self._given == "unit" else float(self._given)
        self._centre, self._scale = _standard(x)
        self._weights = _fitted((x - self._centre) * self._scale, y, count, self.penalty)
        return self

    def predict(self, features: Any) -> np.ndarray:
        """The most probable class of each example, int64 [example], from features [example, feature]."""
        return _logits(*self._standardised(features)).argmax(1)

    def accuracy(self, features: Any, labels: Any) -> float:
        """The share of examples that are classified correctly: features [example, feature], whole labels [example]."""
        found = self.predict(features)
        return float((found == checked_labels(labels, len(found))[0]).mean())

    def loss(self, features: Any, labels: Any) -> float:
        """The mean cross-entropy of examples: features [example, feature], whole labels [example]."""
        x, weights = self._standardised(features)
        return _log_loss(x, checked_labels(labels, len(x))[0], weights)

    def affine(self) -> tuple[np.ndarray, np.ndarray]:
        """The probe on features as they come: logits = features @ matrix + offset, [feature, class] and [class]."""
        _, weights = self._standardised(self._centre[None] if self._weights is not None else [[0.0]])
        matrix = (weights[:, :-1] * self._scale).T
        return matrix, weights[:, -1] - self._centre @ matrix

    def _standardised(self, features: Any) -> tuple[np.ndarray, np.ndarray]:
        """Features by the training set's mean and spread, and the weights; an error where they do not fit."""
        if self._weights is None:
            raise fail("probe", "one that has not been fitted", "a call of fit first")
        x = real_array("features", features, ("example", "feature"))
        if x.shape[1] != len(self._centre):
            raise fail("features", f"{x.shape[1]} features", f"{len(self._centre)}, as in fit")
        return (x - self._centre) * self._scale, self._weights


class NumberProbe:
    """Numbers read out of features linearly, with scale and noise at the largest evidence: a ridge regression.

    Example:
        >>> import numpy as np
        >>> features = np.random.default_rng(0).normal(size=(50, 3))
        >>> probe = NumberProbe().fit(features, features[:, :1] + 2)
        >>> probe.error(features, features[:, :1] + 2) < 0.01
        True
    """

    def fit(self, features: Any, labels: Any, *, classes: int | None = None) -> NumberProbe:
        """Learns numbers [example, output] from features [example, feature], and returns the probe itself."""
        x, y = real_array("features", features, ("example", "feature")), np.asarray(labels, float)
        spread = y.std(0)
        if not spread.any():
            raise fail("labels", "one and the same number", "different numbers to tell apart")
        centre, scale = y.mean(0), np.where(spread > 0, spread, 1.0)
        found = readout_evidence(x, torch.from_numpy((y - centre) / scale))
        self._matrix = found.readout().cpu().numpy() * scale
        self._offset = centre - x.mean(0) @ self._matrix
        return self

    def error(self, features: Any, labels: Any) -> float:
        """The root of the mean squared error of features [example, feature] and numbers [example, output]."""
        return float(np.sqrt(((features @ self._matrix + self._offset - labels) ** 2).mean()))

    def loss(self, features: Any, labels: Any) -> float:
        """Half the squared error of an example, summed over outputs."""
        return 0.5 * self.error(features, labels) ** 2 * labels.shape[1]

    def affine(self) -> tuple[np.ndarray, np.ndarray]:
        """The probe as features @ matrix + offset, [feature, output] and [output]."""
        return self._matrix, self._offset


def _standard(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means of the features and the factors that scale them to unit spread; 0 for constant features."""
    centre, spread = x.mean(0), x.std(0)
    constant = spread <= _ROUNDING * np.maximum(np.abs(centre), np.finfo(float).tiny)
    return centre, np.where(constant, 0.0, 1.0 / np.where(constant, 1.0, spread))


def _logits(x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """W x + b for weights [class, feature and one]."""
    return x @ weights[:, :-1].T + weights[:, -1]


def _log_loss(x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> float:
    return float(-scipy.special.log_softmax(_logits(x, weights), axis=1)[np.arange(len(y)), y].mean())


def _fitted(x: np.ndarray, y: np.ndarray, classes: int, penalty: float, start: np.ndarray | None = None) -> np.ndarray:
    """The weights [class, feature and one] of the smallest penalised loss."""
    examples, features = x.shape
    wanted = np.zeros((examples, classes))
    wanted[np.arange(examples), y] = 1.0

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        weights = flat.reshape(classes, features + 1)
        logarithms = scipy.special.log_softmax(_logits(x, weights), axis=1)
        miss = (np.exp(logarithms) - wanted) / examples
        slope = np.column_stack([miss.T @ x + penalty * weights[:, :-1], miss.sum(0)])
        value = 0.5 * penalty * (weights[:, :-1] ** 2).sum() - (wanted * logarithms).sum() / examples
        return float(value), slope.ravel()

    first = np.zeros(classes * (features + 1)) if start is None else start.ravel()
    options = {"maxiter": 2000, "maxfun": 4000, "ftol": 1e-13, "gtol": 1e-6}
    found = scipy.optimize.minimize(loss, first, jac=True, method="L-BFGS-B", options=options)
    return found.x.reshape(classes, features + 1)


def _chosen_penalty(x: np.ndarray, y: np.ndarray, classes: int) -> float:
    """The penalty of the best likelihood of left-out examples; folds deal out each class in turns."""
    fold, folds = np.empty(len(y), int), min(FOLDS, len(y))
    fold[np.argsort(y, kind="stable")] = np.arange(len(y)) % folds
    parts = []
    for left_out in range(folds):
        inside, outside = fold != left_out, fold == left_out
        centre, scale = _standard(x[inside])
        parts.append(((x[inside] - centre) * scale, y[inside], (x[outside] - centre) * scale, y[outside]))
    weights: list[Any] = [None] * folds
    losses: list[float] = []
    for penalty in PENALTIES:
        # From strong to weak: each fit starts at the last one, which lies near.
        weights = [_fitted(part[0], part[1], classes, penalty, at) for part, at in zip(parts, weights, strict=True)]
        losses.append(
            sum(_log_loss(part[2], part[3], at) * len(part[3]) for part, at in zip(parts, weights, strict=True))
        )
        # Beyond the minimum weaker penalties fit the noise more and more, and take the longest.
        if losses[-1] > 1.05 * min(losses):
            break
    return PENALTIES[int(np.argmin(losses))]
