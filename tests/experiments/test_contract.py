"""What holds for every experiment: registered at both sizes, resumed from its folder, its page, and bad settings."""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from thermoformer._files import refuse_foreign
from thermoformer.cli import PAGE_MARK
from thermoformer.experiments import EXPERIMENTS, Executor, Experiment, console_progress
from thermoformer.experiments.base import Study
from thermoformer.experiments.finite_size import FiniteSizeConfig
from thermoformer.experiments.markov import MarkovConfig
from thermoformer.experiments.one_path import OnePathConfig, fitted_slope
from thermoformer.experiments.one_shot import OneShotConfig, training
from thermoformer.experiments.orbit_diagram import OrbitDiagramConfig
from thermoformer.experiments.phase_diagram import PhaseDiagramConfig
from thermoformer.experiments.pruning import PruningConfig
from thermoformer.experiments.residuals import ResidualsConfig
from thermoformer.experiments.trajectories import TrajectoriesConfig
from thermoformer.experiments.width_convergence import WidthConvergenceConfig
from thermoformer.sweeps import SweepStore, status_of
from thermoformer.sweeps.description import name_of, own_function

from .test_page import assert_self_contained

# Where folders of earlier runs say that their points are: these names stay.
POINTS = {
    "finite_size": ["finite_size_point"],
    "markov": ["markov_repetition"],
    "one_path": ["one_path_point"],
    "one_shot_points": [f"one_shot_{name}" for name in ("point", "limit", "free", "limit_free", "trained", "sampled")],
    "orbit_diagram": ["orbit_diagram_values"],
    "phase_diagram": ["phase_diagram_values"],
    "pruning": ["finetuned_network"],
    "residuals": ["residuals_point"],
    "trajectories": ["trajectories_point"],
    "width_convergence": ["width_convergence_point"],
}
SIZES = {
    "markov": (MarkovConfig.quick(3), MarkovConfig(seed=3)),
    "one-shot": (OneShotConfig.quick(3), OneShotConfig(seed=3)),
    "width-convergence": (
        WidthConvergenceConfig.quick(3),
        WidthConvergenceConfig(seed=3, one_path=OnePathConfig(seed=3)),
    ),
    "residuals": (ResidualsConfig.quick(3), ResidualsConfig(seed=3)),
    "pruning": (PruningConfig.quick(seed=3), PruningConfig(seed=3)),
    "trajectories": (TrajectoriesConfig.quick(), TrajectoriesConfig()),
    "orbit-diagram": (OrbitDiagramConfig().quick(), OrbitDiagramConfig()),
    "orbit-diagram-zoom": (OrbitDiagramConfig.zoom().quick(), OrbitDiagramConfig.zoom()),
    "phase-diagram": (PhaseDiagramConfig.quick(), PhaseDiagramConfig()),
    "finite-size": (FiniteSizeConfig.quick(3), FiniteSizeConfig(seed=3)),
}


def study_of(name: str) -> Study:
    entry = EXPERIMENTS[name]
    return getattr(importlib.import_module(f"thermoformer.experiments.{entry.module}"), entry.study)


@pytest.fixture
def started(monkeypatch) -> list[tuple]:
    """The experiments that would have run: config, folder and executor."""
    calls = []

    def run(self, config, out, *, executor, progress):
        calls.append((config, out, executor))
        return out / "page"

    for kind in {Study, *(type(study_of(name)) for name in EXPERIMENTS)}:
        monkeypatch.setattr(kind, "run", run)
    return calls


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_registered_at_both_sizes(tmp_path, started, name, quick):
    entry = EXPERIMENTS[name]
    assert entry.name == name and entry.summary and entry.quick_time
    assert study_of(name).name == entry.module  # the page that the command looks for before it starts
    with console_progress() as progress:
        assert entry.run(str(tmp_path), quick=quick, seed=3, progress=progress) == tmp_path / "page"
    assert started == [(SIZES[name][not quick], tmp_path, Executor())]


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_network_is_trained_first_where_there_is_one(tmp_path, started, monkeypatch, name, quick):
    trained = []

    def train(config, folder, progress):
        folder.mkdir(parents=True)
        trained.append(config)

    monkeypatch.setattr(training, "run_one_shot_training", train)
    if not EXPERIMENTS[name].trains:
        with pytest.raises(ValueError, match=f"train: got True; .*{name} does not start from a trained network"):
            EXPERIMENTS[name].run(tmp_path, train=True)
        assert not started and not trained
        return
    EXPERIMENTS[name].run(tmp_path, quick=quick, seed=3, train=True)
    ((config, _, _),), (settings,) = started, trained
    assert settings.seed == 3 and (settings.characters == 100) == quick
    assert config == SIZES[name][not quick].with_network(tmp_path / "training" / "network.safetensors", settings)
    assert config.network == str(tmp_path / "training" / "network.safetensors")
    assert (config.classes, config.characters) == (settings.classes, settings.characters)


def test_every_point_may_be_resumed_from_its_folder():
    for module, names in POINTS.items():
        for name in names:
            function = own_function(f"thermoformer.experiments.{module}:{name}")
            assert name_of(function) == f"thermoformer.experiments.{module}:{name}"


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_points_take_the_axes_and_a_record_that_says_all(name):
    study = study_of(name)
    for config in SIZES[name]:
        record = study.record(config)
        assert json.loads(json.dumps(record)) == record
        if axes := study.axes(config):
            assert [*axes, "config"] == list(inspect.signature(type(study).point).parameters)
            assert all(len(values) == len(set(values)) for values in axes.values())


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_templates_have_a_title_a_lead_and_a_footer(name):
    template = study_of(name).template().read_text()
    title, lead, *_ = template.split("\n\n")
    assert title.startswith("# ") and "\n" not in title and not lead.startswith(("#", "{"))
    assert template.count("\n---\n") == 1
    # Every figure says what it shows to readers who do not see it.
    assert all(re.search(r'figure\("\w+", .{15,}\) %', line) for line in template.splitlines() if "call figure" in line)


BAD = [
    (MarkovConfig, {"seeds": 0}, "seeds: got 0; expected a whole number, 1 or more"),
    (MarkovConfig, {"seed": -1}, "seed: got -1; expected a whole number, zero or more"),
    (MarkovConfig, {"widths": ()}, r"widths: got \(\); expected at least one width, in ascending order"),
    (MarkovConfig, {"widths": (20, 10)}, r"widths: got \(20, 10\); expected at least one width, in ascending order"),
    (MarkovConfig, {"widths": (0,)}, "widths: got 0; expected a whole number, 1 or more"),
    (MarkovConfig, {"components": 101}, "components: got 101; expected at most 100, the training examples"),
    (MarkovConfig, {"temperature": -0.1}, "temperature: got -0.1; expected a finite number, zero or more"),
    (MarkovConfig, {"variants": ()}, "variants: got nothing; expected at least one variant"),
    (MarkovConfig, {"variance": 0.0}, "variance: got 0.0; expected a number above 0"),
    (MarkovConfig, {"sampled_seeds": -1}, "sampled_seeds: got -1; expected a whole number, zero or more"),
    (MarkovConfig, {"exact_draws": 0}, "exact_draws: got 0; expected a whole number, 1 or more"),
    (MarkovConfig, {"sampled_draws": 1.5}, "sampled_draws: got 1.5; expected a whole number, 1 or more"),
    (MarkovConfig, {"sampled_up_to": 0}, "sampled_up_to: got 0; expected a whole number, 1 or more"),
    (MarkovConfig, {"chains": 0}, "chains: got 0; expected a whole number, 1 or more"),
    (MarkovConfig, {"temperature": 0.0}, "temperature: got 0.0; expected a number above 0 where something is sampled"),
    (OneShotConfig, {"training_examples": 0}, "training_examples: got 0; expected a whole number, 1 or more"),
    (OneShotConfig, {"test_sequences": 1.5}, "test_sequences: got 1.5; expected a whole number, 1 or more"),
    (OneShotConfig, {"widths": ()}, r"widths: got \(\); expected at least one width, in ascending order"),
    (OneShotConfig, {"widths": (20, 10)}, r"widths: got \(20, 10\); expected at least one width, in ascending order"),
    (OneShotConfig, {"temperatures": ()}, r"temperatures: got \(\); expected at least one temperature"),
    (OneShotConfig, {"temperatures": (0.5, 0.1)}, "temperatures: got .*in ascending order"),
    (OneShotConfig, {"temperatures": (0.0,)}, "temperatures: got 0.0; expected"),
    (OneShotConfig, {"variance": 0.0}, "variance: got 0.0; expected"),
    (OneShotConfig, {"components": 601}, "components: got 601; expected at most 600, the training examples"),
    (OneShotConfig, {"sampled_draws": -1}, "sampled_draws: got -1; expected a whole number, zero or more"),
    (OneShotConfig, {"repetitions": 0}, "repetitions: got 0; expected a whole number, 1 or more"),
    (OneShotConfig, {"seed": -1}, "seed: got -1; expected a whole number, zero or more"),
    (ResidualsConfig, {"seeds": 0}, "seeds: got 0; expected a whole number, 1 or more"),
    (ResidualsConfig, {"seed": -1}, "seed: got -1; expected a whole number, zero or more"),
    (ResidualsConfig, {"widths": ()}, r"widths: got \(\); expected at least one width, in ascending order"),
    (ResidualsConfig, {"widths": (20, 10)}, r"widths: got \(20, 10\); expected at least one width, in ascending order"),
    (ResidualsConfig, {"inside_warmup": 0}, "inside_warmup: got 0; expected a whole number, 1 or more"),
    (ResidualsConfig, {"inside_draws": 0}, "inside_draws: got 0; expected a whole number, 1 or more"),
    (ResidualsConfig, {"chains": 1.5}, "chains: got 1.5; expected a whole number, 1 or more"),
    (ResidualsConfig, {"temperature": 0.0}, "temperature: got 0.0; expected a number above 0"),
    (ResidualsConfig, {"variance": -1.0}, "variance: got -1.0; expected a number above 0"),
    (ResidualsConfig, {"training_examples": 0}, "training_examples: got 0; expected a whole number, 1 or more"),
    (ResidualsConfig, {"feature_width": 7}, "feature_width: got 7; expected an even number"),
    (OrbitDiagramConfig, {"count": 0}, "count: got 0; expected a whole number, 1 or more"),
    (OrbitDiagramConfig, {"between": (2.0, 1.0)}, r"between: got \(2.0, 1.0\); expected a lower and a higher"),
    (OrbitDiagramConfig, {"epsilon": 1.5}, "epsilon: got 1.5; expected a number from 0 to 1"),
    (OrbitDiagramConfig, {"transient": -1}, "transient: got -1; expected a whole number, zero or more"),
    (OrbitDiagramConfig, {"gamma": np.inf}, "gamma: got .*inf"),
    (OrbitDiagramConfig, {"near": 0.0}, "near: got 0.0; expected a number above 0"),
    (PhaseDiagramConfig, {"gammas": (5.0, 5.0)}, r"gammas: got \(5.0, 5.0\); expected a lower and a higher"),
    (PhaseDiagramConfig, {"steps": 0}, "steps: got 0; expected a whole number, 1 or more"),
    (PhaseDiagramConfig, {"transient": -3}, "transient: got -3; expected a whole number, zero or more"),
    (TrajectoriesConfig, {"betas": ()}, r"betas: got \(\); expected at least one value, in ascending order"),
    (TrajectoriesConfig, {"confirm": -1}, "confirm: got -1; expected a whole number, zero or more"),
    (FiniteSizeConfig, {"copies": 1}, "copies: got 1; expected 2 or more"),
    (FiniteSizeConfig, {"bits": (990, 99)}, r"bits: got \(990, 99\); expected at least one number"),
    (FiniteSizeConfig, {"plain_bits": (98,)}, r"plain_bits: got \(98,\); expected some of"),
    (FiniteSizeConfig, {"fit_from": 10**10}, "fit_from: got 10000000000; expected two or more of the bits"),
    (FiniteSizeConfig, {"seed": -1}, "seed: got -1; expected a whole number, zero or more"),
    (WidthConvergenceConfig, {"seeds": 0}, "seeds: got 0; expected a whole number, 1 or more"),
    (WidthConvergenceConfig, {"seed": -1}, "seed: got -1; expected a whole number, zero or more"),
    (WidthConvergenceConfig, {"widths": ()}, r"widths: got \(\); expected at least one width, in ascending"),
    (WidthConvergenceConfig, {"widths": (9, 4)}, r"widths: got \(9, 4\); expected at least one width, in asc"),
    (WidthConvergenceConfig, {"sampled_widths": (5,)}, r"sampled_widths: got \(5,\); expected some of the widths"),
    (WidthConvergenceConfig, {"temperature": 0.0}, "temperature: got 0.0; expected a number above 0"),
    (OnePathConfig, {"data_sets": 0}, "data_sets: got 0; expected a whole number, 1 or more"),
    (OnePathConfig, {"widths": (0,)}, "widths: got 0; expected a whole number, 1 or more"),
    (OnePathConfig, {"temperature": 0.0}, "temperature: got 0.0; expected a number above 0"),
    (PruningConfig, {"test_sequences": 0}, "^test_sequences: got "),
    (PruningConfig, {"seed": -1}, "^seed: got "),
    (PruningConfig, {"widths": ()}, "^widths: got "),
    (PruningConfig, {"widths": (0,)}, "^widths: got "),
    (PruningConfig, {"temperatures": (0.0,)}, "^temperatures: got "),
    (PruningConfig, {"finetuned_removed": (0,)}, "^finetuned_removed: got "),
    (PruningConfig, {"finetuned_random": 2000}, "^finetuned_random: got "),
    (PruningConfig, {"finetuned_orders": ("alphabetical",)}, "^finetuned_orders: got "),
    (PruningConfig, {"finetuning_rate": 0}, "^finetuning_rate: got "),
]


@pytest.mark.parametrize(("kind", "changes", "message"), BAD, ids=lambda value: getattr(value, "__name__", None))
def test_bad_settings_are_refused_before_anything_runs(kind, changes, message):
    with pytest.raises(ValueError, match=message):
        kind(**changes)


def test_a_slope_needs_two_widths():
    with pytest.raises(ValueError, match="error: got 1 widths of 16 or more; expected two or more"):
        fitted_slope(xr.DataArray([[1.0]], {"width": [16]}, ("seed", "width")))


@pytest.fixture
def example(tmp_path, monkeypatch) -> Experiment:
    """The experiment that CONTRIBUTING.md shows, as its text has it."""
    section = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text().partition("## A new experiment")[2]
    code, template, entry = re.findall(r"```(?:python|md)\n(.*?)```", section, flags=re.DOTALL)[:3]
    assert len(f"{code}{template}{entry}".splitlines()) < 150
    name, folder = "thermoformer.experiments.condensation", tmp_path / "condensation"
    folder.mkdir()
    (folder / "__init__.py").write_text(code)
    (folder / "page.md").write_text(template)
    spec = importlib.util.spec_from_file_location(name, folder / "__init__.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    found: dict = {"Experiment": Experiment}
    exec(f"entry = {entry}", found)
    return found["entry"]


def test_the_example_for_a_new_experiment_runs_resumes_and_grows(example, tmp_path):
    out, reports = tmp_path / "out", []
    module = sys.modules["thermoformer.experiments.condensation"]
    page = example.run(out, quick=True, seed=1, progress=lambda *report: reports.append(report))
    names = {"condensation.nc", "condensation.csv", "condensation.html", "participation.png", "participation.svg"}
    assert {file.name for file in out.iterdir()} == names | {"sweep"} and page == out / "condensation.html"
    assert_self_contained(page)
    refuse_foreign(page)  # a second run replaces it
    refuse_foreign(page, mark=PAGE_MARK)
    assert "<td>0.529</td>" in page.read_text() and reports[-1] == (12, 12, "done")
    found = xr.load_dataset(out / "condensation.nc", engine="h5netcdf")
    # Far below the transition all keys count, far beyond it a few.
    assert float(found["mean"].sel(keys=1000, gamma=0.5)) < 0.05 < 0.4 < float(found["mean"].sel(keys=1000, gamma=4.0))
    assert json.loads(found.attrs["config"])["seed"] == 1 and found.participation.attrs["long_name"]
    again = module.STUDY.data(module.CondensationConfig.quick(1), folder=out / "sweep")
    xr.testing.assert_identical(again.drop_attrs(), found.drop_attrs())
    more = dataclasses.replace(module.CondensationConfig.quick(1), keys=(10, 100, 1000))
    reports.clear()
    wider = module.STUDY.data(more, folder=out / "sweep", progress=lambda *report: reports.append(report))
    assert wider["keys"].values.tolist() == [10, 100, 1000] and reports[0][:2] == (12, 18), "12 points are there"
    xr.testing.assert_identical(wider.sel(keys=[100, 1000]).drop_attrs(), found.drop_attrs())
    with pytest.warns(UserWarning, match="sweep holds a run with other settings: kept as sweep-.*, starting anew"):
        module.STUDY.data(dataclasses.replace(more, draws=20), folder=out / "sweep")
    with pytest.raises(ValueError, match="keys: got .1,.; expected numbers from 2 on"):
        module.CondensationConfig(keys=(1,))


def test_the_example_goes_on_after_an_interruption_and_tries_failed_points_again(example, tmp_path, monkeypatch):
    module = sys.modules["thermoformer.experiments.condensation"]
    study, config = module.STUDY, module.CondensationConfig.quick()

    def interrupt(done, total, message):
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        study.run(config, tmp_path, progress=interrupt)
    assert status_of(SweepStore(tmp_path / "sweep")).done == 5 and not (tmp_path / "condensation.nc").exists()
    whole = module.config_of

    def fails(*arguments):
        raise ZeroDivisionError("not today")

    monkeypatch.setattr(module, "config_of", fails)
    with pytest.raises(
        RuntimeError, match="7 of 12 points failed, the first at keys = 100, gamma = 4.0:(.|\n)*not today"
    ):
        study.run(config, tmp_path)
    monkeypatch.setattr(module, "config_of", whole)
    assert study.run(config, tmp_path).exists() and status_of(SweepStore(tmp_path / "sweep")).done == 12
    xr.testing.assert_identical(study.data(config), study.data(config, folder=tmp_path / "sweep"))
