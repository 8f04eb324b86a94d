"""Theory beside the exact posterior, with a real sampler at the smallest size, and beside what else is asked for."""

from __future__ import annotations

import numpy as np
import pytest

from thermoformer.experiments import sampled
from thermoformer.experiments.sampled import FINITE_WIDTH_NAMES, beside_theory, finite_width_variables, whole_key
from thermoformer.learning import Architecture, PathFeatures, solve


@pytest.fixture(scope="module")
def problem() -> tuple:
    """Theory, training features and labels, test features and labels."""
    xi = np.random.default_rng(0).normal(size=(32, 1, 4))
    features, labels = PathFeatures.from_attentioned_inputs(xi), np.sign(xi[:, 0, 0])
    theory = solve(Architecture((1,), 5), features[:12], labels[:12], temperature=0.1)
    return theory, features[:12], labels[:12], features[12:], labels[12:]


@pytest.fixture(scope="module")
def comparison(problem):
    # Too few draws on purpose: warnings are errors here, and chains that have not mixed must not warn.
    return beside_theory(*problem, key=whole_key(0, 1), exact_draws=40, sampled_draws=None, chains=2)


def test_the_exact_posterior_stands_beside_the_theory(comparison, problem):
    assert list(comparison.results) == ["saddle", "exact"] and comparison.results["saddle"] is problem[0]
    assert "exact" in comparison.unmixed
    assert 0 < comparison.distance("saddle", "exact").mean < 0.3


def test_variables_of_a_dataset(comparison):
    values = {name: entries for name, (_, entries) in finite_width_variables([comparison, None], "width").items()}
    assert set(values) == set(FINITE_WIDTH_NAMES)
    assert values["exact_accuracy"][0] == comparison.predictions["exact"].accuracy(comparison.test_labels)
    assert values["exact_distance"][0] == comparison.distance("saddle", "exact").mean
    assert values["exact_mixed"][0] == 0 and values["exact_note"][0] == comparison.unmixed["exact"]
    assert all(np.isnan(entries[1]) for name, entries in values.items() if not name.endswith("note"))
    assert np.isnan(values["sampled_accuracy"][0])
    assert values["exact_note"][1] == values["sampled_note"][0] == ""


@pytest.mark.parametrize(
    ("exact", "networks", "methods"), [(7, 9, ["exact", "sampled"]), (None, 9, ["sampled"]), (7, None, ["exact"])]
)
def test_samplers_get_what_is_asked_for(comparison, problem, monkeypatch, exact, networks, methods):
    seen = {}

    def recorded(*arguments, **options):
        seen.update(options)
        return comparison

    monkeypatch.setattr(sampled, "compare", recorded)
    beside_theory(*problem, key=3, exact_draws=exact, sampled_draws=networks, chains=4)
    assert list(seen["methods"]) == methods
    assert {name: seen["draws"][name] for name in methods} == {
        name: draws for name, draws in (("exact", exact), ("sampled", networks)) if draws
    }
    assert (seen["key"], seen["chains"], seen["temperature"]) == (3, 4, 0.1)


def test_nothing_is_sampled_where_nothing_is_asked_for(problem):
    alone = beside_theory(*problem, key=0, exact_draws=None, sampled_draws=None, chains=2)
    assert list(alone.results) == ["saddle"] and not alone.unmixed
