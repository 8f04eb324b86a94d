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
from thermoformer.experiments.trained_networks import COMPARED, FINETUNED, STUDY, Family, TrainedNetworksConfig
from thermoformer.learning import head_scores
from thermoformer.networks import load_network

from .test_page import assert_self_contained

PLAIN, DROPPED = Family((2, 2), seeds=(1,), finetuned_removed=(2,)), Family((2, 2), 0.25, (2, 3), ())
CONFIG = TrainedNetworksConfig(
    families=(PLAIN, DROPPED),
    key_size=4,
    steps=20,
    many=ManyExamples(examples=(20, 300), widths=(5,), temperatures=(0.5,)),
    training_sequences=20,
    validation_sequences=64,
    test_sequences=128,
    other_sequences=64,
    random_orders=6,
    finetuned_random=1,
    finetuning_steps=2,
    finetuned_sequences=64,
    quick_training=True,
)


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("THERMOFORMER_DATA", str(data_folder(folder)))
        # Pretended: it would compile a solver for every head, and has tests of its own.
        patch.setattr(
            pruning_scores, "evidence_scores", lambda arch, *_, **named: head_scores(arch, np.diag(range(arch.paths)))
        )
        yield STUDY.run(CONFIG, tmp_path_factory.mktemp("run")).parent


@pytest.fixture(scope="module")
def dataset(out):
    return xr.load_dataset(out / "trained_networks.nc")


def test_each_network_is_trained_and_compared(out, dataset):
    assert dataset.seed.values.tolist() == [1, 2, 3] and dataset.order.values.tolist() == list(COMPARED)
    assert dataset.family.values.tolist() == ["2 + 2 heads"] + 2 * ["2 + 2 heads, dropout 0.25"]
    folders = ("2_2_heads/network_1", "2_2_heads_dropout_0.25/network_2", "2_2_heads_dropout_0.25/network_3")
    for number, (folder, family) in enumerate(zip(folders, (PLAIN, DROPPED, DROPPED), strict=True)):
        network = load_network(out / folder / "training" / "network.safetensors")
        inputs = training.one_shot_tasks(
            settings := dataclasses.replace(CONFIG.training(family, 0), rotations=False),
            training.one_shot_parts(settings),
        )
        accuracy = network.accuracy(*inputs["test"].sequences(128))
        one = dataset.isel(network=number)
        assert float(one.network_accuracy.sel(part="test")) == pytest.approx(accuracy)
        assert float(one.curve.sel(part="test", order="gradient", removed=0)) == pytest.approx(accuracy)
        assert one.curve.sel(part="test", order="gradient").notnull().sum() == 3
    assert dataset.order_correlation.sel(many_width=5).notnull().all()
    assert not np.allclose(dataset.order_correlation[1], dataset.order_correlation[2], equal_nan=True)
    assert all(variable.attrs["long_name"] for variable in dataset.data_vars.values())


def test_pruned_networks_are_fine_tuned_where_a_family_says_so(dataset):
    tuned = dataset.finetuned.sel(order=list(FINETUNED))
    assert tuned.isel(network=0).sel(removed=2).notnull().all() and tuned.isel(network=0).sel(removed=1).isnull().all()
    assert tuned.isel(network=[1, 2]).sel(removed=[1, 2]).isnull().all()


def test_families_with_other_numbers_of_heads(dataset, monkeypatch):
    wide = Family((3, 2), seeds=(4,), finetuned_removed=(3,))
    config = dataclasses.replace(CONFIG, families=(PLAIN, wide))
    pretended = {PLAIN: dataset.isel(network=0).drop_vars(["family", "seed"])}
    pretended[wide] = pretended[PLAIN].reindex(removed=range(4), fill_value=0.5)

    def network(self, config, family, seed, workspace):
        return pretended[family]

    monkeypatch.setattr(type(STUDY), "network", network)
    found = STUDY.data(config)
    assert found.curve.isel(network=0).sel(removed=3).isnull().all()
    plain, other = STUDY.values(found, config)["families"]
    assert plain["removed"] == [1, 2] and other["removed"] == [1, 2, 3]
    assert [len(row) for row in other["finetuned"]] == [2] * 5 and other["curves"]["MNIST"][0][3] == "50.0"
    assert set(STUDY.figures(found, config)) == {"agreement", "curves"}


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
        "1 networks of 2 + 2 heads",
        "2 networks of 2 + 2 heads, dropout 0.25",
        "more batches of training characters",
        "ahead of the gradient",
        "best set predicted by",
    ):
        assert words in page.read_text().replace("\n", " ")
    for name in ("agreement", "curves"):
        assert (out / f"{name}.png").stat().st_size > 10_000 and (out / f"{name}.svg").exists()
    with (out / "measures.csv").open() as stream:
        assert {row["seed"] for row in csv.DictReader(stream)} == {"1", "2", "3"}
