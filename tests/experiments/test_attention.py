"""Attention that learns at a tiny size: the numbers, and the files."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from thermoformer.experiments.attention import ANNEALED, APPROACHES, STUDY, AttentionConfig
from thermoformer.experiments.attention.copying import CopyingConfig, attention_of, evidence_of_many
from thermoformer.experiments.attention.descent import overlap
from thermoformer.experiments.attention.hidden_markov import HiddenMarkovConfig, family, good_heads
from thermoformer.experiments.attention.one_parameter import OneParameterConfig
from thermoformer.learning import bilinear_attention
from thermoformer.tasks import HiddenMarkovTask

from .test_page import assert_written

COPYING = CopyingConfig(data_sets=4, ratios=(2.0,), token_width=50)
TINY = AttentionConfig(
    teachers=1,
    ratios=(12.0,),
    normalisations=("softmax",),
    token_width=4,
    tokens=4,
    test_examples=50,
    starts=8,
    sampled=1,
    draws=60,
    warmup=40,
    descents=8,
    steps=500,
    one_parameter=OneParameterConfig(data_sets=1, widths=(1, 300), nodes=41),
    hidden_markov=HiddenMarkovConfig(data_sets=1, examples=(50,), test_examples=200, starts=4, free_steps=30),
    copying=COPYING,
)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return STUDY.run(TINY, tmp_path_factory.mktemp("attention"))


def test_page_and_files(page):
    assert_written(page, ["teachers", "heads", "copying", "assumption"], tables=["attention"])
    found = xr.load_dataset(page.with_suffix(".nc"), engine="h5netcdf")
    assert all(variable.attrs["long_name"] for variable in found.data_vars.values())
    text = page.read_text()
    assert "Softmax attention." in text and "What the saddle assumes" in text
    assert "Heads of the hidden-Markov task" in text and "Copying begins" in text


def test_with_many_labels_all_approaches_find_the_teacher(page):
    found = xr.load_dataset(page.with_suffix(".nc"), engine="h5netcdf").squeeze(["normalisation", "ratio", "teacher"])
    assert found.approach.values.tolist() == list(APPROACHES)
    assert (found.overlap > 0.9).all()
    assert (found.test_error < found.uniform_error / 3).all() and found.teacher_error < 0.1
    assert 0 < found.share.sel(approach=ANNEALED) <= 1 and found.gain.sel(approach=ANNEALED) > 0
    # One parameter: both approximations are right in wide networks, and the Gaussian process is not in narrow ones.
    assert (found.variation.sel(width=300) < 0.05).all()
    assert found.variation.sel(width=1, theory="gaussian process") > found.variation.sel(width=1, theory="saddle")


def test_overlap_is_that_of_directions():
    assert overlap(np.array([[1.0, 0.0], [-3.0, 3.0]]), np.array([0.0, 2.0])) == pytest.approx([0, np.sqrt(0.5)])


def test_heads_of_the_hidden_markov_task_are_found_in_the_family_and_not_with_free_weights(page):
    found = xr.load_dataset(page.with_suffix(".nc"), engine="h5netcdf").squeeze()
    accuracy, evidence = (
        dict(zip(found.hidden_markov_heads.values, found[f"hidden_markov_{name}"].values, strict=True))
        for name in ("accuracy", "evidence")
    )
    assert accuracy["good"] > 0.9 and accuracy["learned"] > 0.95
    assert max(accuracy["uniform"], accuracy["free W"]) < 0.6
    # The labels cannot tell free weights that memorise them from the good head.
    assert min(evidence["learned"], evidence["free W"]) > evidence["good"] > evidence["uniform"]
    # The evidence says which starts have found it.
    starts = found.sel(hidden_markov_search="learned")
    solved = starts.hidden_markov_start_accuracy > 0.9
    assert solved.any() and ((starts.hidden_markov_start_gain > 0) == solved).all()


def test_copying_begins_with_a_jump_or_without(page):
    """At P/N0 = 2 softmax attention has two maxima, and starts stay at the lower one; linear attention has one."""
    found = xr.load_dataset(page.with_suffix(".nc"), engine="h5netcdf").squeeze()
    softmax, linear = (found.sel(copying_normalisation=name) for name in ("softmax", "linear"))
    weights = COPYING.maxima_of_many("softmax", 2.0)
    assert len(weights) == 2 and weights[0] > 0.5 > 0.05 > weights[1]
    assert float(softmax.copying_highest.mean()) == pytest.approx(weights[0], abs=0.1)
    assert float(softmax.copying_ends.min()) < 0.05
    np.testing.assert_allclose(linear.copying_ends.T, np.tile(linear.copying_highest, (4, 1)), atol=0.01)
    density = COPYING.density_of_many("softmax", 2.0, COPYING.grid("softmax"))
    measured = softmax.copying_density.mean("copying_data_set").values
    middle = COPYING.nodes // 2
    assert abs(measured - measured[middle] - density + density[middle]).max() < 0.15


def test_linear_copying_begins_where_the_curvature_of_the_density_at_zero_vanishes():
    """The second derivative is P/N0 (1 + P/N0)/(τT)² − 1/s², by expansion in b of the evidence at finite P and N0."""
    config = CopyingConfig()
    bound = (config.noise**2 * config.tokens / config.linear_scale) ** 2
    threshold = (np.sqrt(1 + 4 * bound) - 1) / 2
    assert config.maxima_of_many("linear", 0.98 * threshold).tolist() == [0]
    (weight,) = config.maxima_of_many("linear", 1.02 * threshold)
    assert 0 < weight < 0.1
    # Softmax attention jumps: at the same weight before and after there is no maximum between.
    below, above = config.maxima_of_many("softmax", 1.1), config.maxima_of_many("softmax", 1.3)
    assert len(below) == len(above) == 2
    np.testing.assert_allclose(below, above[::-1], rtol=0.2)


def test_evidence_of_many_features_is_the_limit_of_networks():
    """The mean over labels of the evidence of Gaussian features, by determinants and traces."""
    width, tokens, ratio, noise = 400, 5, 1.5, 0.7
    copied, other = np.random.default_rng(0).normal(size=(2, 600, width))
    labels = copied @ copied.T / width + noise**2 * np.eye(600)
    for logit in (-1.0, 0.0, 2.0):
        for normalisation in ("softmax", "linear"):
            weight, others = attention_of(np.array(logit), tokens, normalisation)
            xi = weight * copied + others * np.sqrt(tokens - 1) * other
            kernel = xi @ xi.T / width + noise**2 * np.eye(600)
            squares = np.trace(np.linalg.solve(kernel, labels))
            evidence = -(np.linalg.slogdet(2 * np.pi * kernel)[1] + squares) / 2
            limit = evidence_of_many(weight, others, tokens, ratio, noise**2)
            assert evidence / width == pytest.approx(float(limit), abs=0.01), (logit, normalisation)


def test_the_family_contains_the_good_head():
    task = HiddenMarkovTask(perpendicular_noise=5.0)
    x = task.sample(6, seed=0).x
    model = family(task, (2, 1), 4, 10.0)
    first, second = model.attention(good_heads(task, model), x)
    np.testing.assert_allclose(first[:, :1], bilinear_attention(x, task.good_head()[None]), atol=1e-9)
    np.testing.assert_allclose(first[:, 1:], 1 / 31, atol=1e-12)
    np.testing.assert_allclose(second, 1 / 31, atol=1e-12)
