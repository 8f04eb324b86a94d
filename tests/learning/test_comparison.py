"""Theories and samplers side by side: each is what it is alone, distances are what they say, and nothing is hidden."""

from __future__ import annotations

import dataclasses
import inspect
import warnings

import numpy as np
import pytest
from problems import small_problem

from thermoformer.learning import (
    Architecture,
    ConvergenceError,
    PathFeatures,
    SamplingWarning,
    comparison,
    gaussian_process,
    sample_order_parameters,
    solve,
)
from thermoformer.learning.comparison import METHODS, Comparison, compare
from thermoformer.learning.weights import sample_weights_on_paths

TEMPERATURE = 0.2
THEORIES = ("gaussian process", "saddle", "one-loop")


def problem(widths: int = 6) -> tuple[Architecture, PathFeatures, np.ndarray, PathFeatures, np.ndarray]:
    arch, features, labels = small_problem((2,), examples=20, token_width=4, widths=widths)
    return arch, features[:12], labels[:12], features[12:], labels[12:]


def order_parameters_instead(*arguments, **options):
    """In place of sampled networks: the same law, and no other program to compile (`test_brute_force` has both)."""
    inspect.signature(sample_weights_on_paths).bind(*arguments, **options)
    assert options.pop("method") == "gibbs"
    return sample_order_parameters(*arguments, **options)


@pytest.fixture(scope="module")
def found() -> Comparison:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comparison, "sample_weights_on_paths", order_parameters_instead)
        # Sizes and draws are those of the example in the documentation of sample_order_parameters: one program.
        return compare(*problem(), temperature=TEMPERATURE, key=0, draws=500)


def test_every_method_is_what_it_is_alone(found):
    arch, features, labels, test, _ = problem()
    assert tuple(found.results) == tuple(found.predictions) == tuple(found.seconds) == METHODS
    assert found.reference == "exact" and not found.left_out
    limit = gaussian_process(arch, features, labels, temperature=TEMPERATURE)
    corrected = solve(arch, features, labels, temperature=TEMPERATURE, correction="one-loop")
    np.testing.assert_array_equal(found.predictions["gaussian process"].mean, limit.predict(test).mean)
    np.testing.assert_allclose(found.predictions["one-loop"].mean, corrected.predict(test).mean, rtol=1e-10)
    assert found.results["saddle"].action == found.results["one-loop"].action
    assert found.seconds["one-loop"] >= found.seconds["saddle"]


def test_draws_of_one_law_differ_by_their_noise(found):
    apart = found.distance("sampled")
    for part in ("mean", "deviation", "order_parameter"):
        assert getattr(apart, part) < 3 * getattr(apart, f"{part}_noise")
    assert found.distance("gaussian process").mean > 3 * apart.mean


def test_distance_by_hand(found):
    ours, theirs = found.predictions["saddle"], found.predictions["exact"]
    apart = found.distance("saddle")
    scale = np.sqrt(np.mean(theirs.mean**2))
    assert apart.mean == pytest.approx(np.sqrt(np.mean((ours.mean - theirs.mean) ** 2)) / scale)
    assert apart.mean_noise == pytest.approx(np.sqrt(np.mean(theirs.mean_error**2)) / scale)
    deviation = np.sqrt(theirs.variance)
    expected = np.sqrt(np.mean((np.sqrt(ours.variance) - deviation) ** 2) / np.mean(theirs.variance))
    assert apart.deviation == pytest.approx(expected)
    slope = theirs.variance_error / (2 * deviation)
    assert apart.deviation_noise == pytest.approx(np.sqrt(np.mean(slope**2) / np.mean(theirs.variance)))
    grams = [found.results[name].order_parameter for name in ("saddle", "exact")]
    expected = np.linalg.norm(grams[0] - grams[1]) / np.linalg.norm(grams[1])
    assert apart.order_parameter == pytest.approx(expected)
    # Both errors count where both are sampled.
    both = found.distance("exact", "sampled")
    errors = [found.predictions[name].mean_error for name in ("exact", "sampled")]
    scale = np.sqrt(np.mean(found.predictions["sampled"].mean ** 2))
    assert both.mean_noise == pytest.approx(np.sqrt(sum(np.mean(error**2) for error in errors)) / scale)


def test_a_method_is_no_distance_from_itself(found):
    assert set(dataclasses.astuple(found.distance("exact"))) == {0.0}


def test_table_and_text(found):
    rows = {row["method"]: row for row in found.table()}
    assert rows["saddle"]["log_evidence"] == found.results["saddle"].log_evidence
    assert rows["exact"]["log_evidence"] is None and rows["saddle"]["mixed"] is None
    assert rows["exact"]["mixed"] is True
    assert rows["saddle"]["accuracy"] == found.predictions["saddle"].accuracy(found.test_labels)
    lines = str(found).splitlines()
    assert [line.split("  ")[0] for line in lines[1:6]] == list(METHODS)
    assert lines[4].count("reference") == 3
    assert "±: what Monte-Carlo noise alone would show" in lines
    assert len({len(line) for line in lines[1:6] if line.endswith("yes")}) == 1, "columns stand under each other"


def test_dataset_has_the_documented_axes(found):
    dataset = found.to_xarray([["good", "random"]])
    assert dict(dataset.sizes) == {"approach": 5, "example": 8, "path": 2, "path_other": 2}
    assert dataset.path.values.tolist() == ["good", "random"]
    assert dataset.attrs["reference"] == "exact"
    np.testing.assert_array_equal(dataset["mean"].sel(approach="sampled"), found.predictions["sampled"].mean)
    assert (dataset.mean_error.sel(approach="saddle") == 0).all()
    assert np.isnan(dataset.log_evidence.sel(approach="exact"))
    assert float(dataset.distance_mean.sel(approach="saddle")) == found.distance("saddle").mean


def test_the_reference_is_the_best_that_is_there():
    assert compare(*problem(), temperature=TEMPERATURE, key=0, methods=("saddle", "gaussian process")).reference == (
        "gaussian process"
    )


def test_what_does_not_apply_is_left_out_with_its_reason(monkeypatch):
    narrow = compare(*problem(widths=1), temperature=TEMPERATURE, key=0, methods=THEORIES)
    assert tuple(narrow.results) == THEORIES[:2] and "widths of at least 2" in narrow.left_out["one-loop"]
    assert "one-loop left out: widths" in str(narrow)
    assert "one-loop" in narrow.to_xarray().attrs["left_out"]

    def lost(*arguments, **options):
        raise ConvergenceError("the search was lost")

    monkeypatch.setattr(comparison, "solve", lost)
    failed = compare(*problem(), temperature=TEMPERATURE, key=0, methods=THEORIES)
    assert failed.left_out == dict.fromkeys(("saddle", "one-loop"), "the search was lost")
    with pytest.raises(ValueError, match="methods: got none that applies .saddle: the search was lost"):
        compare(*problem(), temperature=TEMPERATURE, key=0, methods=("saddle",))


def test_chains_that_have_not_mixed_are_named_and_not_warned_of_twice(found, monkeypatch):
    bad = dataclasses.replace(found.results["exact"].diagnostics, r_hat=2.0)

    def unmixed(*arguments, **options):
        warnings.warn("not mixed", SamplingWarning, stacklevel=2)
        return dataclasses.replace(found.results["exact"], diagnostics=bad)

    monkeypatch.setattr(comparison, "sample_order_parameters", unmixed)
    said = compare(*problem(), temperature=TEMPERATURE, key=0, methods=("gaussian process", "exact"))
    assert said.unmixed == {"exact": "R-hat is 2.000, over 1.03"}
    assert "exact has not mixed: R-hat" in str(said) and " NO" in str(said)
    assert said.to_xarray().mixed.values.tolist() == [True, False]


def test_networks_too_large_to_sample_are_left_out(monkeypatch):
    def refused(*arguments, **options):
        raise ValueError("memory_limit: got 8e+09 bytes; expected more")

    monkeypatch.setattr(comparison, "sample_weights_on_paths", refused)
    said = compare(*problem(), temperature=TEMPERATURE, key=0, methods=("gaussian process", "sampled"))
    assert said.left_out == {"sampled": "memory_limit: got 8e+09 bytes; expected more"}


@pytest.mark.parametrize("codes", [True, False])
def test_several_outputs_and_skips(codes):
    arch = Architecture((1,), 8, outputs=2, skip=True)
    xi = np.random.default_rng(0).normal(size=(20, 2, 4))
    classes = (xi[:, 0, 0] > 0).astype(int)
    features, one_hot = PathFeatures.from_attentioned_inputs(xi), np.eye(2)[classes]
    test_labels = one_hot[12:] if codes else classes[12:]
    said = compare(
        arch, features[:12], one_hot[:12], features[12:], test_labels, temperature=0.1, key=0, methods=THEORIES[:1]
    )
    (row,) = said.table()
    assert row["accuracy"] == np.mean(said.predictions["gaussian process"].mean.argmax(axis=1) == classes[12:])
    assert (row["bias"] is None) is not codes
    dataset = said.to_xarray()
    assert dict(dataset.sizes) == {"approach": 1, "example": 8, "output": 2, "path": 4, "path_other": 4}


def test_labels_that_are_no_signs_have_a_bias_and_no_accuracy():
    *given, test_labels = problem()
    said = compare(*given, 0.5 * test_labels, temperature=TEMPERATURE, key=0, methods=("gaussian process",))
    assert said.table()[0]["accuracy"] is None and said.table()[0]["bias"] > 0
    unknown = compare(*given, temperature=TEMPERATURE, key=0, methods=("gaussian process",))
    assert unknown.table()[0]["bias"] is None and "test_label" not in unknown.to_xarray()


def test_progress_counts_methods_and_passes_the_samplers_on(monkeypatch, found):
    def sampler(*arguments, progress, **options):
        progress(3, 9, "NUTS, draws")
        return found.results["exact"]

    monkeypatch.setattr(comparison, "sample_order_parameters", sampler)
    reports = []
    given = {"temperature": TEMPERATURE, "key": 0, "methods": ("gaussian process", "exact")}
    compare(*problem(), **given, progress=lambda *report: reports.append(report))
    assert reports == [(0, 2, "gaussian process"), (1, 2, "exact"), (1, 2, "exact: NUTS, draws, 3 of 9")]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"methods": ()}, r"methods: got \(\); expected a sequence of names, at least one"),
        ({"methods": "saddle"}, "methods: got 'saddle'; expected a sequence of names"),
        ({"methods": ("mean field",)}, "methods: got 'mean field'; expected one of 'gaussian process'"),
        ({"methods": ("saddle", "saddle")}, "methods: got .*; expected every name once"),
        ({"temperature": 0.0}, "temperature: got 0.0; expected a number above 0"),
        ({"draws": 0}, "draws: got 0; expected a whole number, 1 or more"),
        ({"draws": {"exact": 10}}, r"draws: got \['exact'\]; expected one number, or one for each of 'exact' and"),
        ({"chains": 0}, "chains: got 0; expected a whole number, 1 or more"),
        ({"sampler": "metropolis"}, "sampler: got 'metropolis'; expected one of"),
        ({"test_labels": [1.0]}, "test_labels: got 1 labels; expected 8"),
        ({"labels": [1.0]}, "labels: got 1 labels; expected 12"),
        (
            {"test_features": PathFeatures.from_attentioned_inputs(np.ones((8, 2, 3)))},
            "test_features: got 2 paths of token width 3; expected 2 paths of token width 4",
        ),
        ({"arch": Architecture((3,), 5)}, "features: got 2 paths; expected 3"),
        (
            {
                "arch": Architecture((2,), 5, outputs=2),
                "labels": np.ones((12, 2)),
                "test_labels": np.full(8, 2),
            },
            r"test_labels: got shape \(8,\); expected \[8, 2\] codes, or 8 class numbers from 0 to 1",
        ),
    ],
)
def test_bad_input(changes, message):
    names = ("arch", "features", "labels", "test_features", "test_labels")
    given = dict(zip(names, problem(), strict=True)) | {"temperature": TEMPERATURE, "key": 0} | changes
    with pytest.raises(ValueError, match=message):
        compare(**given)


def test_unknown_names_are_refused(found):
    with pytest.raises(ValueError, match="name: got 'mean field'; expected one of"):
        found.distance("mean field")
    with pytest.raises(ValueError, match="reference: got 'truth'; expected one of"):
        found.distance("saddle", "truth")
