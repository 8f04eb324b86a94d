"""The experiment on learning curves, on tiny images and networks that have hardly learned."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import xarray as xr
from small_images import data_folder

from thermoformer.experiments.learning_curves import KINDS, STUDY, LearningCurvesConfig
from thermoformer.experiments.one_shot.config import ManyExamples
from thermoformer.experiments.one_shot.points import frozen_heads
from thermoformer.experiments.one_shot.training import OneShotTrainingConfig, one_shot_network
from thermoformer.learning import solve

from .test_page import assert_self_contained

# Sizes that the tests of trained networks have, too.
TRAINING = OneShotTrainingConfig.quick(heads=(2, 2), key_size=4, steps=20, seed=1)
CONFIG = LearningCurvesConfig(
    many=ManyExamples(examples=(20, 300), widths=(5,), temperatures=(0.5, 1.0)),
    seeds=(0, 1),
    steps=20,
    batch=64,
    validation_sequences=64,
    test_sequences=128,
    other_sequences=64,
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("THERMOFORMER_DATA", str(data_folder(tmp_path_factory.mktemp("data"))))
        out = tmp_path_factory.mktemp("run")
        config = CONFIG.with_network(one_shot_network(TRAINING, out / "training"), TRAINING)
        yield config, STUDY.run(config, out)


def test_theory_is_that_of_the_frozen_heads(run):
    config, page = run
    dataset = xr.load_dataset(page.with_name("learning_curves.nc"))
    heads = frozen_heads(config.one_shot())
    x, labels = heads.tasks["training"].sequences(20)
    accuracy = [
        solve(heads.architecture(5, config.one_shot()), heads.network.path_features(x), labels, temperature=temperature)
        .predict(heads.features["validation"])
        .accuracy(heads.labels["validation"])
        for temperature in config.many.temperatures
    ]
    chosen = dataset.theory.sel(choice="validation", examples=20, width=5, part="validation")
    assert float(chosen) == max(accuracy)
    at = dataset.temperature.sel(choice="validation", examples=20, width=5)
    assert accuracy[config.many.temperatures.index(float(at))] == max(accuracy)
    assert float(dataset.source.sel(part="test")) == heads.accuracy["test"]


def test_networks_see_the_first_sequences_only(run, monkeypatch):
    config, _ = run
    seen = []

    def train(arch, batches, validation, *, settings, key, start, progress):
        seen.append((np.concatenate([batches(number)[0] for number in range(30)]), settings.frozen_heads, start))
        raise KeyboardInterrupt

    monkeypatch.setattr("thermoformer.experiments.learning_curves.train", train)
    heads = frozen_heads(config.one_shot())
    first = {one.tobytes() for one in heads.tasks["training"].sequences(20)[0]}
    for kind in KINDS:
        with pytest.raises(KeyboardInterrupt):
            type(STUDY).point(kind, 20, 0, STUDY.record(config))
    for tokens, frozen, start in seen:
        assert {one.tobytes() for one in tokens} == first
        assert frozen == (start is not None)
    np.testing.assert_array_equal(seen[0][2].queries[0], heads.network.queries[0])
    assert not np.allclose(seen[0][2].weights.embedding, heads.network.weights.embedding)


def test_page_and_resumption(run, monkeypatch):
    config, page = run
    assert_self_contained(page)
    for words in ("gradient descent, learned heads", "theory, N = 5, τ by validation", "theory, GP, τ by evidence"):
        assert words in page.read_text()
    assert page.with_name("curves.png").stat().st_size > 10_000

    def forbidden(*arguments, **named):
        raise AssertionError("trained again")

    monkeypatch.setattr("thermoformer.experiments.learning_curves.train", forbidden)
    again = STUDY.data(config, folder=page.parent)
    xr.testing.assert_equal(again.drop_attrs(), xr.load_dataset(page.with_name("learning_curves.nc")).drop_attrs())
    with pytest.raises(RuntimeError, match="points failed(.|\n)*trained again"):
        STUDY.data(dataclasses.replace(config, seeds=(0, 1, 2)), folder=page.parent)
