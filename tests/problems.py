"""Small problems that the tests of the learning theory share."""

from __future__ import annotations

import numpy as np

from thermoformer.learning import Architecture, PathFeatures


def small_problem(
    heads: tuple[int, ...] = (2, 2), examples: int = 30, token_width: int = 8, seed: int = 0, widths=10, variances=1.0
) -> tuple[Architecture, PathFeatures, np.ndarray]:
    """Features with a signal in the first path, and labels ±1."""
    generator = np.random.default_rng(seed)
    arch = Architecture(heads, widths, variances)
    xi = generator.normal(size=(examples, arch.paths, token_width))
    labels = np.sign(xi[:, 0, 0] + 0.3 * generator.normal(size=examples))
    return arch, PathFeatures.from_attentioned_inputs(xi), labels


def attention_problem(
    arch: Architecture, examples: int = 5, tokens: int = 4, token_width: int = 5, seed: int = 0
) -> tuple[np.ndarray, list[np.ndarray], PathFeatures]:
    """Random tokens, random attention of every layer, and the path features of both."""
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(examples, tokens, token_width))
    attention = []
    for heads in arch.heads:
        weights = np.exp(1.5 * generator.normal(size=(examples, heads, tokens, tokens)))
        attention.append(weights / weights.sum(axis=-1, keepdims=True))
    return x, attention, PathFeatures.from_attention(x, attention, skip=arch.skip)


def dense_kernel(arch: Architecture, xi: np.ndarray, order_parameter: np.ndarray, other: np.ndarray | None = None):
    """K(U) straight from its definition (learning §2, §7, §8), with nothing clever; rows (output, example)."""
    other = xi if other is None else other
    hops = [
        [1 / np.sqrt(arch.heads[layer]) for layer, head in enumerate(row) if head >= 0] for row in arch.path_heads()
    ]
    scale = np.array([np.prod(row) for row in hops])
    pair = np.einsum("man,vbn,a,b->abmv", xi, other, scale, scale) * arch.variances[0] / xi.shape[2]
    outputs, paths = arch.outputs, arch.paths
    by_output = order_parameter.reshape(outputs, paths, outputs, paths)
    whole = np.einsum("daeb,abmv->dmev", by_output, pair)
    return whole.reshape(outputs * len(xi), outputs * len(other))


def importance_sampling(
    arch: Architecture,
    xi: np.ndarray,
    labels: np.ndarray,
    new: np.ndarray,
    temperature: float,
    draws: int,
    seed: int = 0,
) -> dict[str, np.ndarray]:
    """The exact posterior from networks drawn from the prior and weighted by N(y; 0, K(U) + τI), in NumPy alone.

    Returns mean, variance [example, output] and order parameter, each with its standard error, and the effective draws.
    """
    generator, outputs, rows = np.random.default_rng(seed), arch.outputs, arch.order_sizes[0]
    both = np.concatenate([xi, new])
    hops = [
        np.prod([1 / np.sqrt(arch.heads[k]) for k, head in enumerate(row) if head >= 0]) for row in arch.path_heads()
    ]
    pair = np.einsum("man,vbn,a,b->abmv", both, both, hops, hops) * arch.variances[0] / xi.shape[2]
    flat, count = labels.reshape(len(xi), -1).T.ravel(), len(xi)
    parts = []
    for _ in range(-(-draws // 20_000)):
        size = min(20_000, draws)
        vectors = np.sqrt(arch.variances[-1]) * generator.normal(size=(size, outputs, 1, arch.widths[-1]))
        for layer in reversed(range(arch.layers)):
            shape = (size, arch.heads[layer], arch.widths[layer + 1], arch.widths[layer])
            value = np.sqrt(arch.variances[layer + 1] / arch.widths[layer + 1]) * generator.normal(size=shape)
            attended = np.einsum("zdro,zhoi->zdhri", vectors, value)
            if arch.skip:
                attended = np.concatenate([vectors[:, :, None], attended], axis=2)
            vectors = attended.reshape(size, outputs, -1, arch.widths[layer])
        vectors = vectors.reshape(size, rows, -1)
        gram = np.einsum("zai,zbi->zab", vectors, vectors) / arch.widths[0]
        by_output = gram.reshape(size, outputs, arch.paths, outputs, arch.paths)
        whole = np.einsum("zdaeb,abmv->zdmev", by_output, pair, optimize=True)
        kernel = whole[:, :, :count, :, :count].reshape(size, len(flat), len(flat)) + temperature * np.eye(len(flat))
        cross = whole[:, :, :count, :, count:].reshape(size, len(flat), -1)
        own = np.einsum("zdmdm->zdm", whole)[:, :, count:].reshape(size, -1)
        solved = np.linalg.solve(
            kernel, np.concatenate([np.broadcast_to(flat[:, None], (size, len(flat), 1)), cross], 2)
        )
        logs = -0.5 * (np.linalg.slogdet(kernel)[1] + np.einsum("m,zm->z", flat, solved[:, :, 0]))
        mean = np.einsum("zmx,zm->zx", cross, solved[:, :, 0])
        parts.append((logs, mean, own - np.einsum("zmx,zmx->zx", cross, solved[:, :, 1:]), gram))
    logs, mean, variance, gram = (np.concatenate(part) for part in zip(*parts, strict=True))
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()

    def average(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        centre = np.tensordot(weights, values, 1)
        return centre, np.sqrt(np.tensordot(weights**2, (values - centre) ** 2, 1))

    centre, error = average(mean)
    # To first order the variance moves with E[f²] − 2 mean·E[f].
    shifted, variance_error = average(mean**2 + variance - 2 * centre * mean)
    order, order_error = average(gram)
    by_example = {
        "mean": centre,
        "mean_error": error,
        "variance": shifted + centre**2,
        "variance_error": variance_error,
    }
    found = {name: value.reshape(outputs, -1).T for name, value in by_example.items()}
    return found | {"order": order, "order_error": order_error, "effective": 1 / np.sum(weights**2)}


def dense_action(arch: Architecture, xi: np.ndarray, labels: np.ndarray, grams, temperature: float) -> float:
    """S straight from its definition in the raw matrices U^1..U^{L+1} (learning §3, §7), not divided by a width."""
    flat = labels.T.ravel()
    covariance = dense_kernel(arch, xi, grams[0]) + temperature * np.eye(len(flat))
    total = np.linalg.slogdet(covariance)[1] + flat @ np.linalg.solve(covariance, flat)
    readout = np.asarray(grams[-1]).reshape(arch.outputs, arch.outputs)
    total += arch.widths[-1] * (np.trace(readout) / arch.variances[-1] - np.linalg.slogdet(readout)[1])
    for layer, heads in enumerate(arch.heads):
        # Rows are (output, head, rest): the prior couples rows of equal head with those of the layer above.
        rest = len(grams[layer + 1]) // arch.outputs
        above = np.asarray(grams[layer + 1]).reshape(arch.outputs, rest, arch.outputs, rest)
        prior = np.einsum("drex,hg->dhregx", above, np.eye(heads)).reshape(grams[layer].shape)
        inner = np.trace(np.linalg.solve(prior, grams[layer])) / arch.variances[layer + 1]
        logs = -np.linalg.slogdet(grams[layer])[1] + heads * np.linalg.slogdet(grams[layer + 1])[1]
        total += arch.widths[layer] * (inner + logs)
    return float(total)


def whitened_vector(arch: Architecture, order_parameters) -> np.ndarray:
    """The vector of whitened factors of given matrices U^1..U^{L+1}: the parametrisation inverted, in NumPy."""
    parts: list[np.ndarray] = []
    above = np.eye(arch.outputs)
    for layer in reversed(range(arch.layers + 1)):
        gram = np.asarray(order_parameters[layer])
        inside = np.arange(len(gram)).reshape(arch.outputs, -1).T.ravel()
        factor = np.linalg.cholesky(gram[np.ix_(inside, inside)])
        block = arch.layout.blocks[layer]
        # With skips the upper rows repeat the layer above, and only the lower ones are new.
        kept = len(gram) - block.rows
        np.testing.assert_allclose(factor[:kept, :kept], above[:kept, :kept], atol=1e-6 * np.abs(above).max())
        outer = np.kron(np.eye(block.rows // len(above)), above) * np.sqrt(arch.variances[layer + 1])
        whitened = np.linalg.solve(outer, factor[kept:])
        old, triangle = whitened[:, : block.old], whitened[:, block.old :]
        triangle = triangle - np.diag(np.diagonal(triangle)) + np.diag(np.log(np.diagonal(triangle)))
        parts.insert(0, np.concatenate([triangle[np.tril_indices(block.rows)], old.ravel()]))
        above = factor
    return np.concatenate(parts)
