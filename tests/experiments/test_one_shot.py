"""The one-shot experiment on a tiny random network and images made on the spot."""

from __future__ import annotations

import csv
import dataclasses
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from small_images import data_folder
from typer.testing import CliRunner

from thermoformer.cli import app
from thermoformer.experiments.one_shot import STUDY, OneShotConfig
from thermoformer.experiments.one_shot import points as one_shot_points
from thermoformer.experiments.one_shot import training as one_shot_training
from thermoformer.experiments.one_shot.config import ManyExamples
from thermoformer.experiments.one_shot.many import training_batches, unpacked
from thermoformer.experiments.one_shot.numbers import (
    COEFFICIENTS,
    at_choice,
    order_chance,
    order_correlation,
    order_parameters,
)
from thermoformer.experiments.one_shot.points import PARTS, frozen_heads, one_shot_record
from thermoformer.learning import (
    Architecture,
    ConvergenceError,
    Diagnostics,
    PathFeatures,
    Posterior,
    Solution,
    gaussian_process,
    order_parameter_from_weights,
    prior_weights,
    solve,
)
from thermoformer.networks import AttentionNetwork, save_network
from thermoformer.sweeps import Sweep
from thermoformer.tasks import OneShotTask

from .test_page import assert_self_contained

WIDE = 10**7


@dataclass(frozen=True, eq=False)
class Pretended(Posterior):
    theory: Solution

    def predict(self, features):
        return self.theory.predict(features)

    def predictor_draws(self, features):
        raise NotImplementedError

    def path_readout(self):
        raise NotImplementedError


def random_network(token_width: int = 64) -> AttentionNetwork:
    arch, random = Architecture((2, 2), 6), np.random.default_rng(0)
    queries, keys = random.normal(size=(2, 2, 2, 3, token_width)) / 4
    return AttentionNetwork(arch, prior_weights(arch, token_width, key=0), tuple(queries), tuple(keys))


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> OneShotConfig:
    folder = tmp_path_factory.mktemp("network")
    return OneShotConfig(
        training_examples=40,
        validation_sequences=40,
        test_sequences=48,
        other_sequences=40,
        widths=(5, WIDE),
        temperatures=(0.1, 0.5),
        components=6,
        network=str(save_network(random_network(), folder / "network.safetensors")),
        classes=(60, 20, 20),
        characters=100,
        sampled_draws=20,
        repetitions=2,
        # Below and above the 256 features of all paths.
        many=ManyExamples(examples=(40, 300), widths=(5,), temperatures=(0.1, 0.5), turned=True),
    )


@pytest.fixture(autouse=True, scope="module")
def _small_data(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("THERMOFORMER_DATA", str(data_folder(tmp_path_factory.mktemp("data"))))
        yield


def pretend_to_sample(arch, features, labels, *, temperature, key, draws, chains, progress, method="nuts") -> Pretended:
    """In place of the samplers, which take long to compile: the theory, and chains that did not mix."""
    assert features.examples == len(labels) == 40
    theory = one_shot_points.solve(arch, features, labels, temperature=temperature)
    record = Diagnostics(method, chains, draws, 200, 1.2, 200.0, 200.0, "", 0, None, 0, 1.0, 1.0)
    order = theory.order_parameter
    return Pretended(arch, temperature, 2 * order, 0.1 * order, record, xr.DataTree(), theory)


@pytest.fixture(scope="module")
def finished(tmp_path_factory, config):
    """A run from beginning to end."""
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("sample_order_parameters", "sample_weights_on_paths"):
            patch.setattr(one_shot_points, name, pretend_to_sample)
        return folder, STUDY.run(config, folder)


@pytest.fixture(scope="module")
def dataset(finished) -> xr.Dataset:
    return xr.load_dataset(finished[0] / "one_shot.nc", engine="h5netcdf")


def test_dataset_has_the_documented_variables(dataset, config):
    assert dict(dataset.sizes) == {
        "width": 3, "temperature": 2, "part": 4, "path": 4, "other_path": 4, "head": 4, "component": 6,
        "coefficient": 4, "repetition": 2,
        "turned": 2, "examples": 2, "many_width": 2, "many_temperature": 2, "feature": 64,
    }  # fmt: skip
    assert dataset.width.values.tolist() == [5, WIDE, np.inf]
    assert dataset.part.values.tolist() == list(PARTS)
    assert dataset.path.values.tolist() == ["0→0", "0→1", "1→0", "1→1"]
    assert dataset["head"].values.tolist() == ["0.0", "0.1", "1.0", "1.1"]
    assert all(variable.attrs["long_name"] for variable in dataset.data_vars.values())
    assert dataset.converged.all() and dataset.many_converged.sel(turned=0).all()
    for name in ("accuracy", "expected_accuracy", "trained_accuracy", "trained_order_accuracy", "sampled_accuracy"):
        assert ((dataset[name] >= 0) & (dataset[name] <= 1)).all()
    assert float(dataset.compared_width) in config.widths
    assert not float(dataset.sampled_mixed) and dataset.sampled_note.item() == "R-hat is 1.200, over 1.03"
    assert dataset.sampled_method.item() == ("gibbs" if float(dataset.compared_width) == 5 else "nuts")


def test_infinite_width_is_the_gaussian_process_and_the_limit_of_large_widths(dataset, config):
    heads = frozen_heads(config, one_shot_record(config)["network_checksum"])
    arch = Architecture((2, 2), 1)
    limit = gaussian_process(arch, heads.features["training"], heads.labels["training"], temperature=0.5)
    found = dataset.sel(width=np.inf, temperature=0.5)
    assert float(found.log_evidence) == pytest.approx(limit.log_evidence)
    prediction = limit.predict(heads.features["test"])
    assert float(found.accuracy.sel(part="test")) == prediction.accuracy(heads.labels["test"])
    np.testing.assert_allclose(
        dataset.order_parameter.sel(width=WIDE), dataset.order_parameter.sel(width=np.inf), atol=1e-4
    )
    np.testing.assert_allclose(
        dataset.expected_accuracy.sel(width=WIDE), dataset.expected_accuracy.sel(width=np.inf), atol=1e-4
    )


def test_the_trained_network_is_measured_on_the_same_sequences(dataset, config):
    heads, network = frozen_heads(config, one_shot_record(config)["network_checksum"]), random_network()
    assert len(heads.labels["test"]) == 48 and len(heads.labels["mnist"]) == 40
    training = config.training_config()
    x, labels = one_shot_training.one_shot_tasks(training, one_shot_training.one_shot_parts(training))[
        "test"
    ].sequences(48)
    right = np.mean(np.sign(network.predict(x)) == labels)
    assert float(dataset.trained_accuracy.sel(part="test")) == pytest.approx(right)
    # The network lies on disk in single precision.
    order = order_parameter_from_weights(network.arch, network.weights)
    np.testing.assert_allclose(dataset.trained_order_parameter, order, rtol=1e-5)


def test_more_examples_are_those_of_the_theory_on_all_of_them(dataset, config):
    heads, many = frozen_heads(config, one_shot_record(config)["network_checksum"]), unpacked(dataset)
    few = many.sel(turned=0, examples=40, temperature=0.5)
    for width in (5, np.inf):  # the training examples of the other part are the first of these
        other = dataset.sel(width=width, temperature=0.5)
        np.testing.assert_allclose(few.log_evidence.sel(width=width), other.log_evidence, rtol=1e-7)
        np.testing.assert_allclose(few.accuracy.sel(width=width), other.accuracy)
    parts = list(training_batches(heads, 300, turned=False))
    xi, labels = np.concatenate([np.asarray(one.values) for one, _ in parts]), np.concatenate([y for _, y in parts])
    assert xi.shape == (300, 4, 64)
    whole = solve(Architecture((2, 2), 5), PathFeatures.from_attentioned_inputs(xi), labels, temperature=0.5)
    found = many.sel(turned=0, examples=300, temperature=0.5, width=5)
    assert float(found.log_evidence) == pytest.approx(whole.log_evidence)
    np.testing.assert_allclose(found.order_parameter, whole.order_parameter, rtol=1e-4, atol=1e-7)
    readout = np.asarray(random_network().path_readout())
    cosine = np.vdot(whole.path_readout(), readout) / np.linalg.norm(whole.path_readout()) / np.linalg.norm(readout)
    assert float(found.readout_cosine) == pytest.approx(cosine, abs=1e-4)
    # Characters are turned at the largest number alone.
    turned = many.sel(turned=1).accuracy
    assert turned.sel(examples=40).isnull().all() and turned.sel(examples=300).notnull().all()
    assert not np.allclose(many.log_evidence.sel(turned=1, examples=300), many.log_evidence.sel(turned=0, examples=300))


def test_choices_follow_validation_and_evidence(dataset):
    validation = dataset.accuracy.sel(part="validation")
    for width in dataset.width.values:
        best = float(dataset.temperature_by_validation.sel(width=width))
        assert float(validation.sel(width=width, temperature=best)) == float(validation.sel(width=width).max())
        best = float(dataset.temperature_by_evidence.sel(width=width))
        evidence = dataset.log_evidence.sel(width=width)
        assert float(evidence.sel(temperature=best)) == float(evidence.max())


def test_the_evidence_may_choose_the_variances_too(dataset, config):
    heads = frozen_heads(config, one_shot_record(config)["network_checksum"])
    data = heads.features["training"], heads.labels["training"]
    for width in dataset.width.values:
        at = dataset.sel(width=width)
        limit = not np.isfinite(width)
        arch = Architecture((2, 2), 1 if limit else int(width), float(at.free_product) ** 0.25)
        again = (gaussian_process if limit else solve)(arch, *data, temperature=float(at.free_temperature))
        assert float(at.free_log_evidence) == pytest.approx(again.log_evidence, abs=1e-6)
        assert float(at.free_log_evidence) >= float(at.log_evidence.max())
        expected = again.predict(heads.features["test"]).accuracy(heads.labels["test"])
        assert float(at.free_accuracy.sel(part="test")) == pytest.approx(expected)
    # A network this wide is the Gaussian process, for which another way of choosing is used.
    assert float(dataset.free_log_evidence.sel(width=WIDE)) == pytest.approx(
        float(dataset.free_log_evidence.sel(width=np.inf)), abs=1e-3
    )


def test_a_width_without_a_choice_does_not_end_the_run(config, monkeypatch):
    def refused(*arguments, **settings):
        raise ConvergenceError("no end")

    monkeypatch.setattr(one_shot_points, "choose_by_evidence", refused)
    found = one_shot_points.one_shot_free(5, one_shot_record(config))
    assert found.free_accuracy.isnull().all() and not bool(found.free_at_bound)


def test_test_labels_choose_nothing(dataset, config, monkeypatch):
    original = OneShotTask.sequences

    def turned(self, examples, **settings):
        x, labels = original(self, examples, **settings)
        return x, labels if self.part in ("training", "validation") else -labels

    one_shot_points._frozen_heads.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(OneShotTask, "sequences", turned)
        other = STUDY.data(dataclasses.replace(config, sampled_draws=0, choose_variances=False, repetitions=1))
    one_shot_points._frozen_heads.cache_clear()
    np.testing.assert_allclose(other.accuracy.sel(part="test"), 1 - dataset.accuracy.sel(part="test"))
    for name in (
        "temperature_by_validation",
        "temperature_by_evidence",
        "compared_width",
        "correlation",
        "many_readout",
    ):
        np.testing.assert_allclose(other[name], dataset[name], equal_nan=True)
    assert "sampled_order_parameter" not in other and "free_accuracy" not in other


def test_training_sequences_are_training_characters_as_they_stand(config, monkeypatch):
    tasks = {}
    original = one_shot_training.one_shot_tasks

    def watched(*arguments):
        tasks.update(original(*arguments))
        return tasks

    one_shot_points._frozen_heads.cache_clear()
    monkeypatch.setattr(one_shot_points, "one_shot_tasks", watched)
    frozen_heads(config)
    one_shot_points._frozen_heads.cache_clear()
    assert not any(task.rotations for task in tasks.values())
    sizes = {name: len(task.images) for name, task in tasks.items()}
    assert (sizes["training"], sizes["validation"], sizes["test"]) == config.classes


def test_run_writes_data_figures_tables_and_page(finished, dataset, config):
    folder, page = finished
    assert page == folder / "one_shot.html"
    assert_self_contained(page)
    text = page.read_text(encoding="utf-8")
    for words in (
        "N = 5",
        "trained network",
        "chance",
        "The chains have not mixed",
        "R-hat 1.200",
        "so that the chains have not mixed",
        "a network of its own",
    ):
        assert words in text
    for name in ("accuracy", "order_parameters", "correlation", "head_scores", "label_overlap", "many"):
        assert (folder / f"{name}.png").stat().st_size > 5000 and (folder / f"{name}.svg").is_file()
    with (folder / "accuracy.csv").open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 3 * 2 + 1 and rows[-1]["width"] == "trained network"
    found = float(dataset.accuracy.sel(width=5, temperature=0.1, part="test"))
    assert float(rows[0]["test_percent"]) == pytest.approx(100 * found, abs=0.006)
    with (folder / "head_scores.csv").open(newline="", encoding="utf-8") as stream:
        assert [row["head"] for row in csv.DictReader(stream)] == ["0.0", "0.1", "1.0", "1.1"]


def test_a_run_goes_on_with_other_widths(finished, config, monkeypatch):
    folder, _ = finished
    solved = []
    original = one_shot_points.solve

    def counted(arch, *arguments, **settings):
        solved.append((arch.widths[0], settings["temperature"]))
        return original(arch, *arguments, **settings)

    monkeypatch.setattr(one_shot_points, "solve", counted)
    less = {"sampled_draws": 0, "choose_variances": False, "repetitions": 1, "many": None}
    more = dataclasses.replace(config, widths=(5, 50, WIDE), **less)
    found = STUDY.data(more, folder=folder / "sweep")
    assert solved == [(50, 0.1), (50, 0.5)]
    assert found.width.values.tolist() == [5, 50, WIDE, np.inf]


def test_a_folder_says_all_that_is_needed_to_go_on(finished, dataset, config, tmp_path):
    file = Path(shutil.copy(config.network, tmp_path / "network.safetensors"))
    own = dataclasses.replace(config, network=str(file), sampled_draws=0, repetitions=1, many=None)
    STUDY.data(own, folder=tmp_path / "sweep")
    for name, missing, result in (
        ("widths", "0/1", "accuracy"),
        ("limit", "1", "trained_order_accuracy"),
        ("free", "1", "free_log_evidence"),
        ("limit_free", "0", "free_log_evidence"),
        ("trained", "0", "trained_accuracy"),
    ):
        folder = tmp_path / "sweep" / name
        before = Sweep.from_store(folder).dataset().load()
        (folder / "data.zarr" / "status" / "c" / missing).unlink()
        assert Sweep.from_store(folder).status().left == 1
        answer = CliRunner().invoke(app, ["sweep", "resume", str(folder)])
        assert answer.exit_code == 0, answer.output
        np.testing.assert_allclose(Sweep.from_store(folder).dataset()[result], before[result])
    # With another network in the same place it would be another sweep.
    save_network(dataclasses.replace(random_network(), queries=random_network().keys), file)
    one_shot_points._frozen_heads.cache_clear()
    (folder / "data.zarr" / "status" / "c" / "0").unlink()
    again = Sweep.from_store(folder)
    again.run()
    assert "which is another by now; expected the one that the sweep began with" in next(iter(again.errors().values()))


def test_another_network_under_the_same_name_is_another_config(config, tmp_path):
    file = save_network(random_network(), tmp_path / "network.safetensors")
    own = dataclasses.replace(config, network=str(file))
    before = one_shot_record(own)
    network = random_network()
    save_network(dataclasses.replace(network, queries=network.keys), file)
    after = one_shot_record(own)
    assert before.pop("network_checksum") != after.pop("network_checksum") and before == after


def test_correlations(dataset):
    random = np.random.default_rng(0)
    first = random.normal(size=(4, 4))
    first = first + first.T
    for ranks in (False, True):
        assert order_correlation(first, 3 * first + 1, ranks=ranks) == pytest.approx(1)
        assert order_correlation(first, -first, ranks=ranks, diagonal=False) == pytest.approx(-1)
    assert order_correlation(first, np.exp(first), ranks=True) == pytest.approx(1)
    assert np.isnan(order_correlation(np.eye(4), first, diagonal=False))
    theory = at_choice(dataset, "validation").sel(width=5).order_parameter
    chance = at_choice(dataset, "validation").sel(width=5, coefficient=COEFFICIENTS[1]).correlation_chance
    assert order_chance(theory, dataset.trained_order_parameter, (2, 2), diagonal=False) == float(chance)
    assert dataset.coefficient.values.tolist() == list(COEFFICIENTS)
    # All four orders of two heads in two layers are tried: chance is a quarter or a multiple of it.
    chance = dataset.correlation_chance.sel(width=5).values
    assert set((4 * chance).ravel().tolist()) <= {1.0, 2.0, 3.0, 4.0}
    assert dataset.correlation.sel(width=np.inf, coefficient=COEFFICIENTS[1]).isnull().all()


def test_repetitions_have_other_sequences_and_choose_by_themselves(dataset, config):
    first = at_choice(dataset, "validation").accuracy.drop_vars("temperature")
    xr.testing.assert_allclose(dataset.repeated_accuracy[0].drop_vars("temperature", errors="ignore"), first)
    less = {"sampled_draws": 0, "choose_variances": False, "repetitions": 1, "many": None}
    other = STUDY.data(dataclasses.replace(config, seed=1, **less))
    expected = at_choice(other, "validation").accuracy
    np.testing.assert_allclose(dataset.repeated_accuracy[1], expected)
    np.testing.assert_allclose(dataset.repeated_evidence_accuracy[1], at_choice(other, "evidence").accuracy)
    np.testing.assert_allclose(dataset.repeated_free_accuracy[0], dataset.free_accuracy)
    np.testing.assert_allclose(dataset.repeated_trained_accuracy[1], other.trained_accuracy)
    assert not np.allclose(dataset.repeated_accuracy[0], dataset.repeated_accuracy[1])
    assert "repeated_accuracy" not in other


def test_matrices_that_are_shown_have_one_trace(dataset):
    matrices = order_parameters(dataset)
    assert [name.split(",")[0] for name in matrices] == ["theory", "sampled networks", "trained weights"]
    np.testing.assert_allclose([np.trace(one) for one in matrices.values()], np.trace(next(iter(matrices.values()))))
    # Pretended networks have twice the theory's U.
    np.testing.assert_allclose(*list(matrices.values())[:2])


def test_a_training_that_is_done_is_not_done_again(tmp_path, monkeypatch):
    ran = []

    def trained(training, folder, progress):
        ran.append(training.seed)
        folder.mkdir(exist_ok=True)
        (folder / "network.safetensors").write_bytes(b"")
        record = {"config": dataclasses.asdict(training)}
        del record["config"]["head_dropout"]  # as in records from before it existed
        (folder / "record.json").write_text(one_shot_training.json.dumps(record))

    monkeypatch.setattr(one_shot_training, "run_one_shot_training", trained)
    for seed in (0, 0, 1):
        one_shot_training.trained_network(tmp_path / "training", quick=True, seed=seed)
    assert ran == [0, 1]


def test_bad_networks(config, tmp_path):
    wide = save_network(random_network(192), tmp_path / "wide.safetensors")
    with pytest.raises(
        RuntimeError, match="network: got tokens of width 192; expected 64, as the task with channels=1"
    ):
        STUDY.data(dataclasses.replace(config, network=str(wide)))
    with pytest.raises(ValueError, match="file: got .*which is not there"):
        STUDY.data(dataclasses.replace(config, network=str(tmp_path / "none.safetensors")))
    (tmp_path / "foreign.safetensors").write_text("not a network")
    with pytest.raises(ValueError, match="file: got .*damaged, or no safetensors file"):
        STUDY.data(dataclasses.replace(config, network=str(tmp_path / "foreign.safetensors")))
