"""Ensembles of the finite network from any window, in plain NumPy: none of the library's arithmetic is used."""

from __future__ import annotations

import numpy as np

from thermoformer.dynamics import MeanField, Window

ROLES = ("o", "v", "q", "k")


def overlaps_of(model: MeanField, window: Window) -> np.ndarray:
    """The overlaps of the tokens of a window in the mean field, [token, overlap], newest first."""
    found = model.overlaps(window.A, window.positions[: len(window.A)])
    return np.concatenate([found[role].reshape(len(window.A), -1) for role in ROLES], axis=1)


def ensemble(model: MeanField, window: Window, steps: int, *, bits: int, copies: int, seed: int, start=None):
    """Overlaps [copy, step, overlap] of networks of N bits whose first L tokens are those of a full window.

    Row t is of token t, the newest of the window being token 0. With bits=None there is no noise: the mean field.
    `start` [token, overlap] replaces the overlaps in the window.
    """
    features, rng = model.features, np.random.default_rng(seed)
    columns, counts = (features.columns, features.fractions) if bits is None else features.joint_classes(bits)
    patterns = np.concatenate([columns[role].reshape(-1, len(counts)) for role in ROLES])
    shares, width = counts / counts.sum(), max(features.positional_bits, 1)
    M, H, L = features.count, features.heads, model.context
    first = overlaps_of(model, window) if start is None else start
    seen = np.repeat(first[None], copies, axis=0)  # [copy, token, overlap], newest first
    rows = [seen[:, 0]]
    for t in range(1, steps):
        v, q, k = np.moveaxis(seen[:, :, M:].reshape(copies, L, 3, H, M), 2, 0)
        logits = model.gamma / np.sqrt(M) * np.einsum("cha,cdha->cdh", q[:, 0], k)
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        A = np.einsum("cdh,cdha->ca", weights, v)
        fields = model.beta * A @ columns["o"]
        means = np.tanh(fields)
        if bits is not None:
            means = 2 * rng.binomial(counts, (1 + means) / 2) / counts - 1
        new = (1 - model.epsilon) * (means * shares) @ patterns.T
        here = window.positions[-t % L]
        parts = [(features.positional[role] @ here).reshape(-1) / width for role in ROLES[1:]]
        new[:, M:] += model.epsilon * np.concatenate(parts)
        seen = np.concatenate([new[:, None], seen[:, :-1]], axis=1)
        rows.append(new)
    return np.stack(rows, axis=1)


def covariance_scores(samples: np.ndarray, expected: np.ndarray, bits: int) -> np.ndarray:
    """Deviations of N·Cov of samples [copy, ..., overlap] from expected [..., overlap, other] in standard errors.

    Of normal samples the error of a covariance is √((C_aa C_bb + C_ab²)/copies). Entries without fluctuations are 0.
    """
    copies = len(samples)
    offsets = samples - samples.mean(axis=0)
    found = bits * np.einsum("c...a,c...b->...ab", offsets, offsets) / (copies - 1)
    variances = np.einsum("...aa->...a", expected)
    errors = np.sqrt((variances[..., :, None] * variances[..., None, :] + expected**2) / copies)
    # Where a covariance is 0 in theory it is rounding in the samples.
    scale = 1e-12 * np.abs(expected).max()
    return (found - expected) / np.maximum(errors, scale)
