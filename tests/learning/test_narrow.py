"""Networks narrower than their number of paths, whose posterior has several modes, against importance sampling."""

from __future__ import annotations

import numpy as np
import pytest
from problems import importance_sampling, small_problem

from thermoformer.learning import (
    Architecture,
    PathFeatures,
    SamplingWarning,
    sample_order_parameters,
    sample_weights_on_paths,
)

raw = PathFeatures.from_attentioned_inputs


def sign_modes() -> tuple[Architecture, np.ndarray, np.ndarray]:
    """Two paths through one neuron: U = u uᵀ, and the relative sign of both entries separates two modes."""
    labels = np.sign(np.random.default_rng(6).normal(size=5))
    return Architecture((2,), 1), np.random.default_rng(5).normal(size=(8, 2, 2)), labels


def parallel_labels() -> tuple[Architecture, np.ndarray, np.ndarray]:
    """Labels along the attended feature; the feature of the skip is orthogonal to it, and the mean is 0 by symmetry."""
    generator = np.random.default_rng(0)
    attended, skipped = generator.normal(size=8), generator.normal(size=8)
    skipped -= attended * (attended @ skipped) / (attended @ attended)
    xi = np.zeros((8, 2, 2))
    xi[:, 0, 0], xi[:, 1, 1] = skipped, attended
    return Architecture((1,), 1, skip=True), xi, 1.5 * attended[:6]


def random_problem(arch: Architecture) -> tuple[Architecture, np.ndarray, np.ndarray]:
    generator = np.random.default_rng([*arch.heads, arch.widths[0], arch.outputs])
    xi, labels = generator.normal(size=(9, arch.paths, 3)), np.sign(generator.normal(size=(6, arch.outputs)))
    return arch, xi, labels if arch.outputs > 1 else labels[:, 0]


def truth_of(problem, temperature: float) -> dict[str, np.ndarray]:
    arch, xi, labels = problem
    count = len(labels)
    truth = importance_sampling(arch, xi[:count], labels, xi[count:], temperature, draws=400_000)
    assert truth["effective"] > 10_000
    return truth


def scores(posterior, problem, truth: dict[str, np.ndarray]) -> np.ndarray:
    """Mean, variance and order parameter, each as its largest distance from the truth in standard errors."""
    _, xi, labels = problem
    found = posterior.predict(raw(xi[len(labels) :]))
    pairs = [
        (found.mean, found.mean_error, truth["mean"], truth["mean_error"]),
        (found.variance, found.variance_error, truth["variance"], truth["variance_error"]),
        (posterior.order_parameter, posterior.order_parameter_error, truth["order"], truth["order_error"]),
    ]
    return np.array(
        [
            np.abs((value.reshape(right.shape) - right) / np.hypot(error.reshape(right.shape), right_error)).max()
            for value, error, right, right_error in pairs
        ]
    )


@pytest.mark.parametrize(
    "problem",
    [
        sign_modes(),
        random_problem(Architecture((3,), 1)),
        random_problem(Architecture((2, 2), 3)),
        random_problem(Architecture((2,), 2, skip=True)),
        random_problem(Architecture((1,), 1, skip=True, outputs=2)),
    ],
    ids=["sign modes", "3 paths, N = 1", "4 paths, N = 3", "skip, N = 2", "skip and two outputs, N = 1"],
)
def test_tempered_chains_against_importance_sampling(problem):
    arch, xi, labels = problem
    # The chains start from levels that have their step sizes: a short warm-up does.
    posterior = sample_order_parameters(arch, raw(xi[: len(labels)]), labels, temperature=0.2, key=0, warmup=200)
    assert posterior.diagnostics.method == "tempered nuts" and posterior.diagnostics.mixed
    assert (scores(posterior, problem, truth_of(problem, 0.2)) < 4.5).all()


def test_labels_along_one_of_two_orthogonal_features():
    """Both signs of the readout are equally likely. Tempered chains and Gibbs cross; NUTS over weights reports 0."""
    problem = arch, xi, labels = parallel_labels()
    given, settings = (arch, raw(xi[:6]), labels), {"temperature": 0.05, "key": 0}
    exact, truth = sample_order_parameters(*given, **settings), truth_of(problem, 0.05)
    gibbs = sample_weights_on_paths(*given, **settings, method="gibbs")
    for posterior in (exact, gibbs):
        assert posterior.diagnostics.mixed
        assert (scores(posterior, problem, truth) < 4.5).all()
    with pytest.warns(SamplingWarning, match="the chains moved between modes 0 times, under 40"):
        sample_weights_on_paths(*given, **settings, method="nuts")


def test_chains_that_stay_in_one_mode_do_not_count_as_mixed():
    arch, xi, labels = parallel_labels()
    with pytest.warns(SamplingWarning, match="the chains moved between modes"):
        stuck = sample_order_parameters(arch, raw(xi[:6]), labels, temperature=0.05, key=0, method="nuts")
    assert not stuck.diagnostics.mixed


def test_the_method_is_chosen_by_the_width():
    # As wide as there are paths; one less is narrow. The sizes are those of test_brute_force, which has the program.
    arch, features, labels = small_problem((2, 2), examples=10, token_width=4, widths=4)
    wide = sample_order_parameters(arch, features, labels, temperature=0.2, key=0)
    assert wide.diagnostics.method == "nuts" and wide.diagnostics.crossings is None
    with pytest.raises(ValueError, match="method: got 'gibbs'; expected one of 'auto', 'nuts', 'tempered'"):
        sample_order_parameters(arch.replace(widths=3), features, labels, temperature=0.2, key=0, method="gibbs")
