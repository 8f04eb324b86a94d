"""The published programs' numbers (reference folder)."""

from __future__ import annotations

import numpy as np
import pytest

from thermoformer.learning import (
    Architecture,
    PathFeatures,
    Weights,
    bilinear_attention,
    forward,
    gaussian_process,
    head_scores,
    label_alignment,
    order_parameter_from_weights,
    query_key_attention,
    solve,
)

READOUTS = {"first_token": "first", "last_token": "last"}


@pytest.fixture(scope="module")
def inputs(reference):
    return reference("learning/4paths_inputs.npz")


@pytest.fixture(scope="module", params=[1, 2])
def general(request, reference):
    data = reference(f"learning/general_L{request.param}.npz")
    arch = Architecture(tuple(data["heads"]), tuple(data["widths"]), tuple(data["variances"]))

    def attention(x):
        return [query_key_attention(x, data[f"Q{i}"], data[f"K{i}"]) for i in range(1, request.param + 1)]

    return data, arch, attention, READOUTS[str(data["readout"])]


def test_markov_attention_and_features(inputs):
    x = inputs["x"]
    first = bilinear_attention(x, inputs["logit_weights_layer1"])
    second = bilinear_attention(x, inputs["logit_weights_layer2"])
    np.testing.assert_allclose(first, inputs["attention_layer1"], atol=1e-12)
    np.testing.assert_allclose(second[:, :, -1], inputs["attention_layer2_last_query"], atol=1e-12)
    features = PathFeatures.from_attention(x, [first, second], "last")
    np.testing.assert_allclose(features.values, inputs["xi_train"][:20], atol=1e-12)


@pytest.mark.parametrize("form", ["pairs", "features"])
@pytest.mark.parametrize("width", [10, 100, 1000])
def test_markov_minimum(reference, inputs, width, form):
    expected = reference(f"learning/4paths_N{width}.npz")
    arch = Architecture(tuple(inputs["heads"]), width, tuple(inputs["variances"]))
    training = PathFeatures.from_attentioned_inputs(inputs["xi_train"])
    test = PathFeatures.from_attentioned_inputs(inputs["xi_test"])
    temperature = float(inputs["temperature"])
    solution = solve(arch, training, inputs["y_train"], temperature=temperature, form=form)
    for mine, theirs in zip(solution.order_parameters, ("U1", "U2", "u_a"), strict=True):
        np.testing.assert_allclose(mine, np.atleast_2d(expected[theirs]), atol=1e-6)
    assert solution.action == pytest.approx(float(expected["action"]), abs=1e-9)
    # The reference gives the parts at the unpolished minimum only.
    assert solution.energy == pytest.approx(float(expected["energy"]), abs=1e-4)
    assert solution.entropy == pytest.approx(float(expected["entropy"]), abs=1e-4)
    prediction = solution.predict(test)
    np.testing.assert_allclose(prediction.mean, expected["mean_test"], atol=1e-6)
    np.testing.assert_allclose(prediction.variance, expected["variance_test"], atol=1e-6)
    overlap = label_alignment(solution.kernel(training), inputs["y_train"], 30)
    np.testing.assert_allclose(overlap, expected["label_overlap"], atol=1e-4)

    limit = gaussian_process(arch, training, inputs["y_train"], temperature=temperature, form=form)
    np.testing.assert_allclose(limit.predict(test).mean, expected["gp_mean_test"], atol=1e-10)
    np.testing.assert_allclose(limit.predict(test).variance, expected["gp_variance_test"], atol=1e-10)
    overlap = label_alignment(limit.kernel(training), inputs["y_train"], 30)
    np.testing.assert_allclose(overlap, expected["label_overlap_gp"], atol=1e-10)


def test_markov_accuracies(inputs):
    training = PathFeatures.from_attentioned_inputs(inputs["xi_train"])
    test = PathFeatures.from_attentioned_inputs(inputs["xi_test"])
    solution = solve(Architecture((2, 2), 10), training, inputs["y_train"], temperature=0.01)
    assert solution.predict(test).accuracy(inputs["y_test"]) == pytest.approx(0.964, abs=1e-12)
    for paths, heads, accuracy in (([0], (1, 1), 0.940), ([0, 2], (2, 1), 0.955)):
        limit = gaussian_process(Architecture(heads, 10), training.select(paths), inputs["y_train"], temperature=0.01)
        assert limit.predict(test.select(paths)).accuracy(inputs["y_test"]) == pytest.approx(accuracy, abs=1e-12)


def test_general_features(general):
    data, _, attention, readout = general
    for part in ("train", "test"):
        x = data[f"x_{part}"]
        features = PathFeatures.from_attention(x, attention(x), readout)
        np.testing.assert_allclose(features.values, data[f"xi_{part}"], atol=1e-12)


def test_general_minimum(general):
    data, arch, _, _ = general
    training = PathFeatures.from_attentioned_inputs(data["xi_train"])
    test = PathFeatures.from_attentioned_inputs(data["xi_test"])
    solution = solve(arch, training, data["y_train"], temperature=float(data["temperature"]))
    for layer in range(arch.layers):
        np.testing.assert_allclose(solution.order_parameters[layer], data[f"Umin_{layer + 1}"], atol=1e-6)
    np.testing.assert_allclose(solution.order_parameters[-1], [[data["Ua_min"]]], atol=1e-6)
    assert solution.action == pytest.approx(float(data["loss_min"]), abs=1e-9)
    prediction = solution.predict(test)
    np.testing.assert_allclose(prediction.mean, data["mean_min"], atol=1e-6)
    np.testing.assert_allclose(prediction.variance, data["var_min"], atol=1e-6)


def test_general_limit_and_given_order_parameter(general):
    data, arch, _, _ = general
    training = PathFeatures.from_attentioned_inputs(data["xi_train"])
    test = PathFeatures.from_attentioned_inputs(data["xi_test"])
    limit = gaussian_process(arch, training, data["y_train"], temperature=float(data["temperature"]))
    np.testing.assert_allclose(limit.predict(test).mean, data["mean_GP"], atol=1e-10)
    np.testing.assert_allclose(limit.predict(test).variance, data["var_GP"], atol=1e-10)
    assert limit.energy == pytest.approx(float(data["energy_at_GP"]), abs=1e-10)
    assert limit.entropy == pytest.approx(float(data["entropy_at_GP"]), abs=1e-10)
    other = limit.with_order_parameter(data["Urand_1"])
    np.testing.assert_allclose(other.predict(test).mean, data["mean_at_rand"], atol=1e-10)
    np.testing.assert_allclose(other.predict(test).variance, data["var_at_rand"], atol=1e-10)
    assert other.data_energy() / max(arch.widths) == pytest.approx(float(data["energy_at_rand"]), abs=1e-10)


def test_general_weights(general):
    data, arch, attention, readout = general
    values = tuple(data[f"w_V_{layer + 1}"] for layer in range(arch.layers))
    weights = Weights(data["w_V_0"], values, data["w_a"][:, 0])
    x = data["x_test"]
    output = forward(arch, weights, x, attention(x), readout=readout)
    np.testing.assert_allclose(output, data["forward_rand_weights"], atol=1e-10)
    np.testing.assert_allclose(order_parameter_from_weights(arch, weights), data["U1_from_rand_weights"], atol=1e-10)


def test_head_scores(reference):
    data = reference("learning/general_L2.npz")
    arch = Architecture(tuple(data["heads"]), tuple(data["widths"]))
    scores = head_scores(arch, data["Urand_1"], normalise=False)
    expected = list(zip(data["headscore_at_rand_layers"], data["headscore_at_rand_heads"], strict=True))
    assert scores.ascending() == expected
    np.testing.assert_allclose(np.sort(scores.values), data["headscore_at_rand_scores"], rtol=1e-12)
