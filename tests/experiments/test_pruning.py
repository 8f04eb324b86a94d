"""The pruning experiment on tiny images and a tiny random network: its data, its files, and going on."""

from __future__ import annotations

import csv
import dataclasses
import shutil

import numpy as np
import pytest
import xarray as xr
from small_images import data_folder
from typer.testing import CliRunner

from thermoformer.cli import app
from thermoformer.experiments import pruning
from thermoformer.experiments.one_shot.config import ManyExamples
from thermoformer.experiments.one_shot.many import training_batches
from thermoformer.experiments.one_shot.points import frozen_heads
from thermoformer.experiments.one_shot.training import OneShotTrainingConfig
from thermoformer.experiments.pruning import config as pruning_config
from thermoformer.experiments.pruning import scores as pruning_scores
from thermoformer.experiments.pruning.config import MEASURED, PREDICTED, SCORES, PruningConfig, pruning_inputs
from thermoformer.experiments.pruning.numbers import order_curves, rank_correlation, single_drops
from thermoformer.experiments.pruning.predicted import agreement, chosen_sets, one_shot_config
from thermoformer.experiments.pruning.scores import all_codes, code_of, removed_heads
from thermoformer.learning import (
    Architecture,
    PathFeatures,
    head_scores,
    prior_weights,
    rotate_examples,
    solve,
    without_heads,
)
from thermoformer.networks import AttentionNetwork, random_orders, save_network
from thermoformer.sweeps import Sweep

from .test_page import assert_self_contained


def network_file(file, heads=(2, 2), outputs=1):
    arch, random = Architecture(heads, 4, outputs=outputs), np.random.default_rng(0)
    maps = [tuple(0.2 * random.normal(size=(count, 3, 64)) for count in heads) for _ in range(2)]
    return str(save_network(AttentionNetwork(arch, prior_weights(arch, 64, key=0), *maps), file))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("THERMOFORMER_DATA", str(data_folder(folder, characters=(12, 10))))
        # Pretended: they would compile a solver for every set of heads, and have tests of their own.
        patch.setattr(pruning_scores, "rescored_order", lambda arch, *_, **named: random_orders(arch, 1, key=5)[0])
        patch.setattr(pruning_scores, "evidence_scores", lambda arch, *_, **named: head_scores(arch, np.diag(range(4))))
        yield PruningConfig(
            network=network_file(folder / "network.safetensors"),
            training_sequences=20,
            validation_sequences=64,
            test_sequences=128,
            other_sequences=64,
            widths=(5,),
            temperatures=(0.5,),
            random_orders=6,
            finetuned_removed=(2,),
            finetuned_orders=("theory",),
            finetuned_random=1,
            finetuning_steps=2,
            finetuning_batch=8,
            finetuned_sequences=64,
            classes=(12, 4, 6),
            many=ManyExamples(examples=(20, 300), widths=(5,), temperatures=(0.5,)),
        )


@pytest.fixture(scope="module")
def out(tiny, tmp_path_factory):
    return pruning.STUDY.run(tiny, tmp_path_factory.mktemp("run")).parent


@pytest.fixture(scope="module")
def dataset(out):
    return xr.load_dataset(out / "pruning.nc")


def test_dataset_has_the_documented_variables(dataset, tiny):
    sizes = {"part": 4, "subset": 9, "score_name": 4, "head": 4, "width": 1, "temperature": 1}
    sizes |= {"examples": 2, "many_width": 2, "many_temperature": 1}
    assert dict(dataset.sizes) == sizes | {"order": 10, "removed": 3, "random": 6}
    assert dataset.accuracy.notnull().all() and ((dataset.accuracy >= 0) & (dataset.accuracy <= 1)).all()
    assert dataset.score.notnull().all() and (dataset.order_code[:, 0] == 0).all()
    assert dataset.chosen_width == 5 and dataset.chosen_temperature == 0.5
    assert all(variable.attrs["long_name"] for variable in dataset.data_vars.values())
    asked = {0, int(dataset.order_code.sel(order="theory", removed=2)), int(dataset.random_code[0, 2])}
    measured = dataset.finetuned_accuracy.sel(part=list(MEASURED)).notnull().all("part")
    assert set(dataset.subset.values[measured.values].tolist()) == asked
    assert dataset.finetuned_accuracy.sel(part="validation").isnull().all()


def test_accuracies_are_those_of_the_networks_without_their_heads(dataset, tiny):
    inputs = pruning_inputs(tiny)
    x, y = inputs.tasks["test"].sequences(128)
    for code in dataset.subset.values.tolist():
        network = inputs.network.without(removed_heads(inputs.heads, code))
        expected = np.mean(np.sign(network.predict(x)) == y)
        assert float(dataset.accuracy.sel(part="test", subset=code)) == pytest.approx(expected)
    whole, lost = float(dataset.accuracy.sel(part="test", subset=0)), single_drops(dataset)
    without = dataset.accuracy.sel(part="test", subset=[1, 2, 4, 8])
    np.testing.assert_allclose(lost, 100 * (whole - without))


def test_orders_go_head_by_head_and_the_search_is_best_on_validation(dataset):
    names = [name for name in dataset.order.values.tolist() if name not in ("search", PREDICTED)]
    for codes in (*dataset.order_code.sel(order=names).values, *dataset.random_code.values):
        assert [int(code).bit_count() for code in codes] == [0, 1, 2]
        assert codes[1] & codes[2] == codes[1] and codes[2] not in (0b0011, 0b1100)
    validation = dataset.accuracy.sel(part="validation")
    assert float(validation.sel(subset=int(dataset.order_code.sel(order="search")[1]))) == float(
        validation.sel(subset=[1, 2, 4, 8]).max()
    )
    lowest = int(np.argmin(dataset.score.sel(score_name="gradient").values))
    assert int(dataset.order_code.sel(order="gradient")[1]) == 1 << lowest


def test_what_the_theory_predicts_is_its_own_prediction_without_the_heads(dataset, tiny):
    inputs, frozen = pruning_inputs(tiny), frozen_heads(one_shot_config(tiny))
    data = rotate_examples(training_batches(frozen, 300, turned=False))
    solution = solve(Architecture((2, 2), 5), *data, temperature=0.5)
    predicted = dataset.predicted_accuracy.sel(examples=300, many_width=5)
    for part, count in (("validation", 64), ("mnist", 64)):
        x, y = inputs.tasks[part].sequences(count)
        features = PathFeatures.from_attentioned_inputs(inputs.network.path_features(x).values)
        for code in dataset.subset.values.tolist():
            expected = without_heads(solution, removed_heads(inputs.heads, code)).predict(features).accuracy(y)
            assert float(predicted.sel(part=part, subset=code)) == pytest.approx(expected)
    validation = predicted.sel(part="validation")
    codes = chosen_sets(dataset.predicted_accuracy).sel(examples=300, many_width=5).values.tolist()
    assert codes == dataset.order_code.sel(order=PREDICTED).values.tolist() and codes[0] == 0
    for code, some in zip(codes[1:], ([1, 2, 4, 8], [5, 6, 9, 10]), strict=True):
        assert float(validation.sel(subset=code)) == float(validation.sel(subset=some).max())
    true, ours = dataset.accuracy.sel(part="test").values, predicted.sel(part="test").values
    np.testing.assert_array_equal(
        dataset.last_predicted.sel(many_width=5, many_temperature=0.5), dataset.predicted_accuracy[-1].sel(many_width=5)
    )
    held_out = dict(
        zip(("features", "labels"), (frozen.features["validation"], frozen.labels["validation"]), strict=True)
    )
    losses = head_scores(solution.architecture, solution, method="predicted ablation", normalise=False, **held_out)
    np.testing.assert_allclose(dataset.ablation, losses.values, rtol=1e-6)
    found = float(agreement(dataset).all_sets.sel(examples=300, many_width=5))
    assert found == pytest.approx(np.corrcoef(true, ours)[0, 1])


def test_scores_do_not_know_the_test_labels(dataset, tiny, monkeypatch):
    """Other test characters and labels of theirs: no score, choice or order may change."""
    inputs = pruning_inputs(tiny)
    upside_down = {name: dataclasses.replace(inputs.tasks[name], seed=9) for name in MEASURED}
    changed = inputs._replace(tasks=inputs.tasks | upside_down)
    monkeypatch.setattr(pruning, "pruning_inputs", lambda config: changed)
    again = pruning.STUDY.data(dataclasses.replace(tiny, finetuned_removed=(), rescored=False))
    assert not np.array_equal(again.accuracy.sel(part="test"), dataset.accuracy.sel(part="test"))
    np.testing.assert_array_equal(again.score, dataset.score)
    np.testing.assert_array_equal(again.ablation, dataset.ablation)
    names = again.order.values.tolist()
    np.testing.assert_array_equal(again.order_code, dataset.order_code.sel(order=names))


def test_what_is_finished_is_not_done_again(dataset, tiny, out, monkeypatch):
    def forbidden(*arguments, **named):
        raise AssertionError("done again")

    for name in ("subset_data", "score_data", "rescored_data", "train_network", "predicted_data"):
        monkeypatch.setattr(pruning, name, forbidden)
    again = pruning.STUDY.data(tiny, folder=out)
    xr.testing.assert_equal(again.drop_attrs(), dataset.drop_attrs())
    with pytest.raises(AssertionError, match="done again"), pytest.warns(UserWarning, match="other settings"):
        pruning.STUDY.data(dataclasses.replace(tiny, training_sequences=21), folder=out)
    next(out.glob("subsets-*.nc")).rename(out / "subsets.nc")


def test_fine_tuning_goes_on_from_its_folder(out, tmp_path):
    folder = tmp_path / "finetuned"
    shutil.copytree(out / "finetuned", folder)
    before = Sweep.from_store(folder).dataset().load()
    (folder / "data.zarr" / "status" / "c" / "1").unlink()
    answer = CliRunner().invoke(app, ["sweep", "resume", str(folder)])
    assert answer.exit_code == 0, answer.output
    found = Sweep.from_store(folder)
    assert found.status().left == 0
    np.testing.assert_allclose(found.dataset().finetuned_accuracy, before.finetuned_accuracy)
    with pytest.raises(ValueError, match="network: got one with digest .*; expected another, as the sweep began with"):
        pruning.finetuned_network(0, found.work.fixed["config"] | {"digest": "another"})


def test_files(out):
    assert_self_contained(out / "pruning.html")
    text = (out / "pruning.html").read_text()
    for words in ("Rank correlation", "After a short fine-tuning", "There is one random order only", "beats random"):
        assert words in text
    for name in ("scores", "curves", "finetuned", "predicted"):
        assert (out / f"{name}.png").stat().st_size > 10_000 and (out / f"{name}.svg").exists()
    with (out / "heads.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [row["head"] for row in rows] == ["0.0", "0.1", "1.0", "1.1"]
    with (out / "curves.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert {row["fine_tuned"] for row in rows} == {"yes", "no"}
    assert [len(row["heads"].split()) for row in rows[:3]] == [0, 1, 2]


def test_a_page_without_fine_tuning(dataset, tiny, tmp_path):
    bare = dataset.assign(finetuned_accuracy=dataset.finetuned_accuracy * np.nan)
    text = pruning.STUDY.write(bare, tiny, tmp_path).read_text()
    assert "fine-tuning" not in text and not (tmp_path / "finetuned.png").exists()


def test_rank_correlation_is_spearmans():
    from scipy.stats import spearmanr

    random = np.random.default_rng(0)
    one, two = random.normal(size=(2, 6))
    two[1] = two[2]
    found = rank_correlation(one, two)
    assert found.value == pytest.approx(spearmanr(one, two).statistic)
    # All 720 pairings of six heads; the best two of them where both sides rise.
    assert rank_correlation(range(6), range(6)).chance == pytest.approx(2 / 720)
    assert np.isnan(rank_correlation([1, 1, 1], [1, 2, 3]).value)
    assert rank_correlation(range(10), range(10)).chance < 0.001
    with pytest.raises(ValueError, match="second: got 2 numbers; expected 3"):
        rank_correlation([1, 2, 3], [1, 2])


def test_curves_beside_random_orders():
    table = xr.DataArray([[0.9, 0.7, 0.8]], {"part": ["test"], "subset": [0, 1, 2]}, ("part", "subset"))
    codes = {"order_code": (("order", "removed"), [[0, 1]]), "random_code": (("random", "removed"), [[0, 1], [0, 2]])}
    dataset = xr.Dataset({"accuracy": table} | codes, {"order": ["theory"], "removed": [0, 1]})
    curves = order_curves(dataset, "test", 100)
    assert float(curves.random_mean[1]) == pytest.approx(0.75)
    assert float(curves.deviations[0, 1]) == pytest.approx(-0.05 / np.std([0.7, 0.8], ddof=1))
    assert float(curves.beats[0, 1]) == 0.25 and np.isnan(curves.deviations[0, 0])
    assert float(curves.error[0, 1]) == pytest.approx(np.sqrt(0.21 / 100))


def test_codes():
    heads = [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert all_codes(Architecture((2, 2), 3), heads) == [0, 1, 2, 4, 5, 6, 8, 9, 10]
    for code in range(16):
        assert code_of(heads, removed_heads(heads, code)) == code


def test_the_usual_sizes_are_settings():
    assert PruningConfig.quick(seed=3).seed == 3 and PruningConfig.quick().test_sequences >= 4000
    assert PruningConfig().finetuned_orders[: len(SCORES)] == SCORES
    assert PruningConfig().settings().steps == 200


def test_bad_networks(tiny, tmp_path):
    for heads, outputs in (((2, 1), 1), ((2, 2), 2)):
        file = network_file(tmp_path / f"{outputs}.safetensors", heads, outputs)
        with pytest.raises(ValueError, match="network: got heads .* expected one output, and two heads or more"):
            pruning_config.pruning_inputs(dataclasses.replace(tiny, network=file))
    with pytest.raises(ValueError, match="network: got tokens of width 64; expected 192"):
        pruning_config.pruning_inputs(dataclasses.replace(tiny, channels=3))


def test_a_network_of_ones_own_has_its_own_characters_and_heads(tmp_path):
    """At fewer heads fine-tuning stops where one head is left in each layer."""
    training = OneShotTrainingConfig.quick(classes=(12, 4, 6), characters=22)
    config = PruningConfig().with_network(tmp_path / "network.safetensors", training)
    assert config.network == str(tmp_path / "network.safetensors") and config.characters == 22
    assert config.classes == (12, 4, 6) and config.finetuned_removed == (2,)
