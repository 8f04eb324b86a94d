"""The command `thermoformer heads`, on tiny models with random weights."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from hub_stand_in import hub_of
from tiny_models import tiny_folder, without_speed
from typer.testing import CliRunner

from thermoformer.cli import app


def run(*arguments):
    return CliRunner().invoke(app, ["heads", *map(str, arguments)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("heads")
    tiny_folder(place / "bert", "BERT")
    tiny_folder(place / "gpt", "GPT-2", "LMHeadModel")
    lines = [
        f"the {animal} {verb}\t{animal}" for animal in ("cat", "dog") for verb in ("sits", "runs", "sings", "falls")
    ]
    (place / "animals.tsv").write_text("\n".join(lines))
    (place / "story.txt").write_text("the cat sits on the old tree and the dog runs under the red bird but " * 20)
    return place


def deepest(folder, out):
    """Options that need no evidence."""
    return "--task", folder / "animals.tsv", "--prune", "0.25", "--method", "deepest", "--out", out


def test_labelled_texts_from_the_shell(folder, tmp_path):
    given = (folder / "bert", *deepest(folder, tmp_path))
    result = run(*given)
    assert result.exit_code == 0, result.output
    for words in ("test accuracy", "parameters", "before", "after", f"Page: {tmp_path / 'heads.html'}"):
        assert words in result.stdout.replace("\n", "") or words in result.stdout
    assert (tmp_path / "pruned" / "pruned_heads.json").is_file() and not (tmp_path / "masked").exists()
    lines = f'from thermoformer.transformers import load_pruned\nmodel = load_pruned("{tmp_path / "pruned"}")'
    assert lines in result.stdout and "load_pruned" in (tmp_path / "pruned" / "README.md").read_text()
    record = json.loads(run(*given, "--json").stdout)
    assert record == json.loads((tmp_path / "record.json").read_text())
    assert record["removed"] == ["2.0", "2.1", "2.2"] and record["goal"] == "probe"


# Two runs of the command in one process, which imports PyTorch once.
TWO_MODELS = """
import json, sys
from typer.testing import CliRunner
from thermoformer.cli import app

runs = [CliRunner().invoke(app, ["heads", name, *sys.argv[1:]]) for name in ("someone/tiny-bert", "someone/else")]
print(json.dumps([{name: getattr(run, name) for name in ("exit_code", "stdout", "stderr")} for run in runs]))
"""


def test_a_name_on_the_hub(folder, tmp_path):
    usual = [*deepest(folder, tmp_path / "out"), "--json"]
    with hub_of({"someone/tiny-bert": folder / "bert"}) as (address, asked):
        # In a process of its own, since the address of the hub is read when its library is imported.
        away = {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_TELEMETRY": "1"}
        surroundings = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"} | away
        command = [sys.executable, "-c", TWO_MODELS, *map(str, usual)]
        done = subprocess.run(command, capture_output=True, text=True, env=surroundings, timeout=300)
    assert done.returncode == 0, done.stderr
    found, missing = json.loads(done.stdout)
    assert found["exit_code"] == 0, found["stderr"]
    record = json.loads(found["stdout"])
    assert record["model"] == "someone/tiny-bert" and record["removed"] == ["2.0", "2.1", "2.2"]
    assert any("model.safetensors" in request for request in asked)
    assert not any(request.endswith((".bin", ".py")) for request in asked if request.startswith("GET"))
    local = json.loads(run(folder / "bert", *usual).stdout)
    assert without_speed(record)["after"] == without_speed(local)["after"]
    assert missing["exit_code"] == 2 and "model: got" in missing["stderr"] and "Traceback" not in missing["stderr"]


def test_text_as_a_second_argument_or_as_the_task(folder, tmp_path):
    usual = ("--prune", "0.25", "--length", "12", "--out", tmp_path, "--json")
    results = [
        run(folder / "gpt", folder / "story.txt", "--task", "text", *usual),
        run(folder / "gpt", "--task", "text", folder / "story.txt", *usual),
        run(folder / "gpt", "--task", folder / "story.txt", *usual),
        run(folder / "gpt", folder / "story.txt", "--goal", "language", *usual),
    ]
    assert all(result.exit_code == 0 for result in results), results[0].output
    first, *others = [without_speed(json.loads(result.stdout)) for result in results]
    assert first["measure"] == "perplexity" and all(one == first for one in others)


def test_equally_many_heads_of_every_layer(folder, tmp_path):
    given = (folder / "bert", *deepest(folder, tmp_path), "--uniform", "--json")
    assert json.loads(run(*given).stdout)["removed"] == ["2.0", "1.0", "0.0"]


def test_a_comparison_is_shown_with_all_methods(folder, tmp_path):
    given = ("--task", folder / "animals.tsv", "--compare", "--seeds", "2", "--masked", "--out", tmp_path)
    result = run(folder / "bert", *given)
    assert result.exit_code == 0, result.output
    for words in ("evidence:once", "gradient_by_layer", "shallowest", "by heads removed"):
        assert words in result.stdout
    assert (tmp_path / "masked" / "config.json").is_file() and (tmp_path / "curves.png").is_file()


def test_an_interrupted_comparison_says_that_its_points_are_kept(folder, tmp_path, monkeypatch):
    from thermoformer.transformers import curves

    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(curves, "removal_order", interrupted)
    given = ("--task", folder / "animals.tsv", "--method", "random", "--compare", "--out", tmp_path)
    result = run(folder / "bert", *given)
    assert result.exit_code == 130 and "the same command goes on from there" in result.stderr
    assert "Traceback" not in result.output and list((tmp_path / "points").rglob("*.json"))


def test_without_pytorch_there_is_one_line_that_says_what_to_install(monkeypatch):
    for name in [
        name for name in sys.modules if name.startswith(("thermoformer.transformers", "thermoformer.experiments.heads"))
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    result = run("some-model", "--task", "trec")
    assert result.exit_code == 2 and "pip install 'thermoformer[transformers]'" in result.stderr
    assert "Traceback" not in result.output
