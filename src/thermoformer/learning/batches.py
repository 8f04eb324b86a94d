"""Many training examples, batch by batch, as Π·N0 examples with the same posterior (learning §2, dual form)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._validation import fail, labels_for, real_array
from .architecture import squeeze_output
from .kernels import checked_features
from .paths import PathFeatures

# Rows that are rotated at once, over the columns that they have: with four, a fifth of the work is repeated work.
_ROWS_PER_COLUMN = 4


class RotatedFeatures(PathFeatures):
    """Features of training examples after an orthogonal rotation of the examples: what `rotate_examples` returns.

    A row is a combination of examples, so rows are neither selected nor predicted.

    Fields:
        values: T [row, path, feature], with as many rows as columns (path, feature).
        rest: |y_⊥|², the part of the labels in directions where ξ is zero.
        total: P, the number of examples.
    """

    rest: Float[Array, ""]
    total: int = eqx.field(static=True)

    def __init__(self, values: Any, rest: Any, total: int) -> None:
        super().__init__(values)
        self.rest = jnp.asarray(rest)
        self.total = total

    @property
    def observed(self) -> int:
        """P, the number of examples before rotation."""
        return self.total

    def __getitem__(self, examples: Any) -> PathFeatures:
        raise fail("features", "examples of rotated features", "the features before rotation")

    def __repr__(self) -> str:
        return f"RotatedFeatures(examples={self.total}, paths={self.paths}, token_width={self.token_width})"


def rotate_examples(batches: Iterable[tuple[PathFeatures, Any]]) -> tuple[PathFeatures, np.ndarray]:
    """Features and labels of any number of examples, for `solve` and the like, in the memory of Π·N0 of them.

    An orthogonal rotation Q of the examples leaves the posterior as it is: Ξ = QT, and T has Π·N0 rows. Batches are
    rotated into T one after another and need not be kept, so that memory does not grow with P. The time is that of a
    QR decomposition, 2.5 P (Π·N0)² operations. Results are those of all examples at once, up to rounding.

    Arguments:
        batches: pairs of features and labels, y [example] or [example, output]; a generator makes them one by one.

    Returns:
        Rotated features, and rotated labels; the examples as they are if these are Π·N0 or fewer.

    Example:
        >>> from thermoformer.learning import Architecture, solve
        >>> xi = np.random.default_rng(0).normal(size=(100, 2, 8))
        >>> feats, y = PathFeatures.from_attentioned_inputs(xi), np.sign(xi[:, 0, 0])
        >>> parts = [slice(start, start + 10) for start in range(0, 100, 10)]
        >>> rotated, labels = rotate_examples((feats[part], y[part]) for part in parts)
        >>> rotated, rotated.values.shape
        (RotatedFeatures(examples=100, paths=2, token_width=8), (16, 2, 8))
        >>> arch = Architecture((2,), 10)
        >>> found = [solve(arch, *data, temperature=0.1).log_evidence for data in ((feats, y), (rotated, labels))]
        >>> bool(np.isclose(*found))
        True
    """
    triangle, waiting, total, shape, outputs = None, [], 0, (0, 0), ()
    for number, (features, labels) in enumerate(batches):
        values = checked_features(f"batches[{number}]", features).values
        if isinstance(features, RotatedFeatures):
            raise fail(f"batches[{number}]", repr(features), "features before rotation")
        y = real_array(f"batches[{number}]: labels", labels)
        if number == 0:
            shape, outputs = values.shape[1:], y.shape[1:]
        if values.shape[1:] != shape or y.shape[1:] != outputs:
            got = f"ξ {values.shape} and labels {y.shape}"
            raise fail(f"batches[{number}]", got, f"[example, *{shape}] and [example, *{outputs}], as in batches[0]")
        y = labels_for(f"batches[{number}]: labels", y, len(values), outputs[0] if outputs else 1)
        waiting.append(_side_by_side(values, y))
        total += len(values)
        rows = _ROWS_PER_COLUMN * waiting[-1].shape[1]
        while sum(map(len, waiting)) >= rows:
            block = jnp.concatenate(waiting)
            triangle = _rotated(triangle, block[:rows])
            waiting = [block[rows:]]
    if not total:
        raise fail("batches", "nothing", "at least one pair of features and labels")
    left, columns = jnp.concatenate(waiting), int(np.prod(shape))
    if triangle is None and total <= columns:
        return PathFeatures.from_attentioned_inputs(left[:, :columns].reshape(-1, *shape)), _labels(left, columns)
    if len(left):
        # Rows of zeros change nothing, and spare a program of another shape.
        rows = _ROWS_PER_COLUMN * left.shape[1]
        triangle = _rotated(triangle, jnp.zeros((rows, left.shape[1])).at[: len(left)].set(left))
    assert triangle is not None
    rest = jnp.sum(triangle[columns:] ** 2)
    inside = triangle[:columns]
    return RotatedFeatures(inside[:, :columns].reshape(-1, *shape), rest, total), _labels(inside, columns)


@jax.jit
def _side_by_side(values: Array, labels: Array) -> Array:
    return jnp.concatenate([values.reshape(len(values), -1), labels.reshape(len(labels), -1)], axis=1)


def _labels(rows: Array, columns: int) -> np.ndarray:
    return squeeze_output(np.asarray(rows[:, columns:]))


def _rotated(triangle: Array | None, rows: Array) -> Array:
    return _triangle(jnp.zeros((rows.shape[1],) * 2) if triangle is None else triangle, rows)


@jax.jit
def _triangle(triangle: Array, rows: Array) -> Array:
    """The triangle R of a QR decomposition of a triangle and more rows below it."""
    return jnp.linalg.qr(jnp.concatenate([triangle, rows]), mode="r")
