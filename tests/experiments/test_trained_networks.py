"""The experiment on several trained networks, on tiny images and networks that have hardly learned."""

from __future__ import annotations

import csv
import dataclasses

import numpy as np
import pytest
import xarray as xr
from small_images import data_folder

from thermoformer.experiments.one_shot import training
from thermoformer.experiments.one_shot.config import ManyExamples
from thermoformer.experiments.pruning import scores as pruning_scores
from thermoformer.experiments.trained_networks import COMPARED, STUDY, TrainedNetworksConfig
from thermoformer.learning import head_scores
from thermoformer.networks import load_network

from .test_page import assert_self_contained

CONFIG = TrainedNetworksConfig(
    seeds=(1, 2),
    heads=(2, 2),
    key_size=4,
    steps=20,
    head_dropout=0.25,
    many=ManyExamples(examples=(20, 300), widths=(5,), temperatures=(0.5,)),
    training_sequences=20,
    validation_sequences=64,
    test_sequences=128,
    other_sequences=64,
    random_orders=6,
    quick_training=True,
)


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("THERMOFORMER_DATA", str(data_folder(folder)))
        # Pretended: it would compile a solver for every head, and has tests of its own.
        patch.setattr(pruning_scores, "evidence_scores", lambda arch, *_, **named: head_scores(arch, np.diag(range(4))))
        yield STUDY.run(CONFIG, tmp_path_factory.mktemp("run")).parent


@pytest.fixture(scope="module")
def dataset(out):
    return xr.load_dataset(out / "trained_networks.nc")


def test_each_network_is_trained_and_compared(out, dataset):
    assert dataset.network.values.tolist() == [1, 2] and dataset.order.values.tolist() == list(COMPARED)
    for seed in CONFIG.seeds:
        network = load_network(out / f"network_{seed}" / "training" / "network.safetensors")
        inputs = training.one_shot_tasks(
            settings := dataclasses.replace(CONFIG.training(0), rotations=False), training.one_shot_parts(settings)
        )
        accuracy = network.accuracy(*inputs["test"].sequences(128))
        assert float(dataset.network_accuracy.sel(network=seed, part="test")) == pytest.approx(accuracy)
        assert float(dataset.curve.sel(network=seed, part="test", order="gradient", removed=0)) == pytest.approx(
            accuracy
        )
    assert not np.allclose(dataset.order_correlation[0], dataset.order_correlation[1], equal_nan=True)
    assert dataset.order_correlation.sel(many_width=5).notnull().all()
    assert all(variable.attrs["long_name"] for variable in dataset.data_vars.values())


def test_networks_that_are_trained_are_not_trained_again(out, dataset, monkeypatch):
    def forbidden(*arguments, **named):
        raise AssertionError("trained again")

    monkeypatch.setattr(training, "run_one_shot_training", forbidden)
    again = STUDY.data(CONFIG, folder=out)
    xr.testing.assert_equal(again.drop_attrs(), dataset.drop_attrs())
    with pytest.raises(AssertionError, match="trained again"):
        STUDY.data(dataclasses.replace(CONFIG, steps=21), folder=out)


def test_files(out):
    page = out / "trained_networks.html"
    assert_self_contained(page)
    for words in (
        "2 networks of 4 heads",
        "left out with probability 0.25",
        "ahead of the gradient",
        "best set as the",
    ):
        assert words in page.read_text().replace("\n", " ")
    for name in ("agreement", "curves"):
        assert (out / f"{name}.png").stat().st_size > 10_000 and (out / f"{name}.svg").exists()
    with (out / "measures.csv").open() as stream:
        assert {row["network"] for row in csv.DictReader(stream)} == {"1", "2"}
