"""The command `thermoformer train`, on small data files made on the spot."""

from __future__ import annotations

import json

import pytest
from small_images import data_folder
from typer.testing import CliRunner

from thermoformer.cli import app
from thermoformer.experiments.one_shot.training import (
    OneShotTrainingConfig,
    one_shot_accuracy,
    one_shot_parts,
    one_shot_tasks,
    shipped_network,
)
from thermoformer.networks import load_network
from thermoformer.tasks import OneShotTask

QUICK = ("train", "one-shot", "--quick", "--steps", "100", "--batch", "32", "--width", "8", "--key-size", "4")


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return data_folder(tmp_path_factory.mktemp("data"))


@pytest.fixture(autouse=True)
def _small_data(folder, monkeypatch):
    monkeypatch.setenv("THERMOFORMER_DATA", str(folder))


def test_a_quick_training_from_beginning_to_end(tmp_path):
    result = run(*QUICK, "--out", tmp_path, "--json")
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert record == json.loads((tmp_path / "record.json").read_text())
    assert set(record["accuracy"]) == {"validation", "test", "fashion-mnist", "mnist"}
    assert record["steps"] == 100 and [row[0] for row in record["validation"]] == [40, 80, 100]
    assert record["config"]["seed"] == 0 and "--steps 100" in record["command"] and "CPU cores" in record["machine"]
    network = load_network(tmp_path / "network.safetensors")
    assert (
        network.arch.heads == (2, 2) and network.arch.widths == (8, 8, 8) and network.parameters == record["parameters"]
    )
    config = OneShotTrainingConfig.quick(steps=100)
    tasks = one_shot_tasks(config, one_shot_parts(config))
    assert one_shot_accuracy(network, tasks["test"], 512) == record["accuracy"]["test"]
    # The same command again reads what is there, and prints tables.
    again = run(*QUICK, "--out", tmp_path)
    assert again.exit_code == 0 and "all 100 steps done" in again.stdout
    for words in (
        "test characters",
        "mnist, class 0 or 1",
        f"{100 * record['accuracy']['test']:.1f} ±",
        "network.safetensors",
    ):
        assert words in again.stdout
    # Another seed must not touch it.
    kept = (tmp_path / "training.safetensors").read_bytes()
    other = run(*QUICK, "--seed", 1, "--out", tmp_path)
    assert other.exit_code == 2 and "checkpoint: got a run with key" in other.stderr
    assert (tmp_path / "training.safetensors").read_bytes() == kept


def test_an_interrupted_training_goes_on(tmp_path, monkeypatch):
    whole = OneShotTask.batch

    def interrupted(task, number, examples=128):
        if task.part == "training" and number == 90:
            raise KeyboardInterrupt
        return whole(task, number, examples)

    monkeypatch.setattr(OneShotTask, "batch", interrupted)
    result = run(*QUICK, "--out", tmp_path / "first")
    assert result.exit_code == 130 and "holds 1 files, and the same command goes on from there" in result.stderr
    monkeypatch.setattr(OneShotTask, "batch", whole)
    resumed = json.loads(run(*QUICK, "--out", tmp_path / "first", "--json").stdout)
    undisturbed = json.loads(run(*QUICK, "--out", tmp_path / "second", "--json").stdout)
    assert resumed == undisturbed


def test_damaged_data_and_foreign_files(tmp_path, monkeypatch):
    damaged = data_folder(tmp_path / "damaged", characters=(60, 50))
    zip_file = damaged / "omniglot" / "images_background.zip"
    zip_file.write_bytes(zip_file.read_bytes()[:1000])
    with monkeypatch.context() as patched:
        patched.setenv("THERMOFORMER_DATA", str(damaged))
        result = run(*QUICK, "--out", tmp_path / "out")
    assert result.exit_code == 2 and "images_background.zip, which is damaged" in result.stderr
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "training.safetensors").write_text("my notes")
    result = run(*QUICK, "--out", tmp_path / "out")
    assert result.exit_code == 2 and "it is left as it is" in result.stderr
    assert (tmp_path / "out" / "training.safetensors").read_text() == "my notes"


def test_sizes_of_the_published_run():
    config = OneShotTrainingConfig.full(steps=None)
    assert config == OneShotTrainingConfig() and config.architecture().widths == (512, 512, 512)
    assert (config.steps, config.batch, config.settings().weight_decay) == (41_000, 128, 5e-5)
    assert OneShotTrainingConfig.full(steps=500).warmup == 50


def test_the_shipped_network_has_the_accuracy_of_its_record(real_data):
    from importlib.resources import files

    record = json.loads((files("thermoformer.experiments") / "data" / "one_shot_h4.json").read_text())
    assert record["accuracy"]["test"] >= 0.838
    config = OneShotTrainingConfig(**{name: _tuple(value) for name, value in record["config"].items()})
    network = shipped_network()
    assert network.arch == config.architecture() and network.parameters == record["parameters"]
    tasks = one_shot_tasks(config, one_shot_parts(config))
    found, expected = one_shot_accuracy(network, tasks["test"], 1024), record["accuracy"]["test"]
    assert abs(found - expected) < 4 * (expected * (1 - expected) / 1024) ** 0.5
    # No better than chance once the label embedding is another one: the labels are what it reads.
    strange = OneShotTask(tasks["test"].images, part="test", embedding_seed=5)
    assert abs(one_shot_accuracy(network, strange, 512) - 0.5) < 0.1


def _tuple(value):
    return tuple(value) if isinstance(value, list) else value


def test_the_command_in_the_record_is_the_one_that_was_given(tmp_path):
    """Other settings than the usual ones are in it; no clip, and an early stop."""
    given = ("--clip", "0", "--patience", "1", "--learning-rate", "1e-9")
    result = run(*QUICK, *given, "--out", tmp_path, "--json")
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert record["config"]["clip"] is None and record["config"]["patience"] == 1
    for words in ("--clip 0", "--patience 1", "--learning-rate 1e-09", "--quick"):
        assert words in record["command"]
    shown = OneShotTrainingConfig.full(heads=(8, 8), key_size=64, clip=0.0).command()
    assert shown.endswith("--heads 8,8 --width 512 --key-size 64 --steps 41000 --batch 128 --seed 0 --clip 0")
