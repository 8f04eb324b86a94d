"""What holds for every experiment: registered at both sizes, resumed from its folder, its page, and bad settings."""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import json
import re
import sys
from pathlib import Path
from typing import get_type_hints

import numpy as np
import pytest
import xarray as xr

from thermoformer._files import refuse_foreign
from thermoformer.cli import PAGE_MARK
from thermoformer.experiments import EXPERIMENTS, Executor, Experiment, console_progress
from thermoformer.experiments.attention import AttentionConfig
from thermoformer.experiments.attention.copying import CopyingConfig
from thermoformer.experiments.attention.hidden_markov import HiddenMarkovConfig
from thermoformer.experiments.attention.one_parameter import OneParameterConfig
from thermoformer.experiments.base import Study
from thermoformer.experiments.finite_size import FiniteSizeConfig
from thermoformer.experiments.learning_curves import LearningCurvesConfig
from thermoformer.experiments.markov import MarkovConfig
from thermoformer.experiments.noise import NoiseConfig
from thermoformer.experiments.one_path import OnePathConfig, fitted_slope
from thermoformer.experiments.one_shot import OneShotConfig, training
from thermoformer.experiments.orbit_diagram import OrbitDiagramConfig
from thermoformer.experiments.phase_diagram import PhaseDiagramConfig
from thermoformer.experiments.pruning import PruningConfig
from thermoformer.experiments.residuals import ResidualsConfig
from thermoformer.experiments.teacher import TeacherConfig
from thermoformer.experiments.trained_networks import TrainedNetworksConfig
from thermoformer.experiments.trajectories import TrajectoriesConfig
from thermoformer.experiments.width_convergence import WidthConvergenceConfig
from thermoformer.sweeps import SweepStore, status_of
from thermoformer.sweeps.description import own_function
from thermoformer.sweeps.identity import name_of, source_of

from .test_page import assert_self_contained

# Folders of earlier runs name these functions and have hashes of their text: neither may change.
POINTS = {
    "attention:attention_point": "101fa21686f98e96",
    "attention.hidden_markov:hidden_markov_point": "0e653993729e5c5e",
    "attention.copying:copying_point": "9e7f7e9e74aff33e",
    "attention.one_parameter:one_parameter_point": "0b56e959109ae646",
    "finite_size:finite_size_point": "1420d2e7b8a2467e",
    "learning_curves:trained_point": "eb9a7c6572aad170",
    "markov:markov_repetition": "723fd4049fcfa383",
    "noise:noise_point": "2a6b4622d7a84804",
    "one_path:one_path_point": "2878b472154fd039",
    "one_shot.many:many_limit": "b0d657ad1c31204d",
    "one_shot.many:many_point": "3bab1129c36d0b17",
    "one_shot_points:one_shot_free": "77a5d41af04a4f7e",
    "one_shot_points:one_shot_limit": "d16422fdf3ff7c7f",
    "one_shot_points:one_shot_limit_free": "0452bd149ae64f87",
    "one_shot_points:one_shot_point": "c6b6b50b1d9008fb",
    "one_shot_points:one_shot_sampled": "c2958a54bab46fee",
    "one_shot_points:one_shot_trained": "475ecb778c191321",
    "orbit_diagram:orbit_diagram_values": "57fd1ee96ab5d821",
    "phase_diagram:phase_diagram_values": "a7deaf8540d61600",
    "pruning:finetuned_network": "0c58c94f796eb467",
    "residuals:residuals_point": "40f13be29966755e",
    "teacher:teacher_point": "ff4bc6e70b2dd1c7",
    "trajectories:trajectories_point": "a6efd327ee303888",
    "width_convergence:width_convergence_point": "8ae8778344222292",
}
SIZES = {
    "markov": (MarkovConfig.quick(3), MarkovConfig(seed=3)),
    "one-shot": (OneShotConfig.quick(3), OneShotConfig(seed=3)),
    "width-convergence": (
        WidthConvergenceConfig.quick(3),
        WidthConvergenceConfig(seed=3, one_path=OnePathConfig(seed=3)),
    ),
    "teacher": (TeacherConfig.quick(3), TeacherConfig(seed=3)),
    "residuals": (ResidualsConfig.quick(3), ResidualsConfig(seed=3)),
    "noise": (NoiseConfig.quick(3), NoiseConfig(seed=3)),
    "pruning": (PruningConfig.quick(seed=3), PruningConfig(seed=3)),
    "trained-networks": (TrainedNetworksConfig.quick(seed=3), TrainedNetworksConfig(seed=3)),
    "learning-curves": (LearningCurvesConfig.quick(3), LearningCurvesConfig(seed=3)),
    "attention": (
        AttentionConfig.quick(3),
        AttentionConfig(
            seed=3,
            one_parameter=OneParameterConfig(seed=3),
            hidden_markov=HiddenMarkovConfig(seed=3),
            copying=CopyingConfig(seed=3),
        ),
    ),
    "trajectories": (TrajectoriesConfig.quick(), TrajectoriesConfig()),
    "orbit-diagram": (OrbitDiagramConfig().quick(), OrbitDiagramConfig()),
    "orbit-diagram-zoom": (OrbitDiagramConfig.zoom().quick(), OrbitDiagramConfig.zoom()),
    "phase-diagram": (PhaseDiagramConfig.quick(), PhaseDiagramConfig()),
    "finite-size": (FiniteSizeConfig.quick(3), FiniteSizeConfig(seed=3)),
}


@pytest.fixture
def started(monkeypatch) -> list[tuple]:
    """The experiments that would have run: config, folder and executor."""
    calls = []

    def run(self, config, out, *, executor, progress):
        calls.append((config, out, executor))
        return out / "page"

    for kind in {Study, *(type(EXPERIMENTS[name].study) for name in EXPERIMENTS)}:
        monkeypatch.setattr(kind, "run", run)
    return calls


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_registered_at_both_sizes(tmp_path, started, name, quick):
    entry = EXPERIMENTS[name]
    assert entry.name == name and entry.summary and entry.quick_time
    assert EXPERIMENTS[name].study.name == entry.module  # the page that the command looks for before it starts
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
    if not hasattr(SIZES[name][0], "with_network"):
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


@pytest.mark.parametrize("name", POINTS)
def test_every_point_may_be_resumed_from_folders_of_earlier_runs(name):
    function = own_function(f"thermoformer.experiments.{name}")
    assert name_of(function) == f"thermoformer.experiments.{name}" and source_of(function) == POINTS[name]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_points_take_the_axes_and_a_record_that_says_all(name):
    study = EXPERIMENTS[name].study
    for config in SIZES[name]:
        record = study.record(config)
        assert json.loads(json.dumps(record)) == record
        if axes := study.axes(config):
            assert [*axes, "config"] == list(inspect.signature(type(study).point).parameters)
            assert all(len(values) == len(set(values)) for values in axes.values())


# Runs that differ in these settings share their points, so that a run can grow; all other settings make other points.
GROWN = {
    "markov": {"seeds": 12},
    "width-convergence": {
        "seeds": 7,
        "widths": (4, 10, 20, 30, 100, 300, 1000),
        "one_path": OnePathConfig(data_sets=1),
    },
    "teacher": {"teachers": 14, "widths": (6, *TeacherConfig().widths), "ratios": (0.01, *TeacherConfig().ratios)},
    "residuals": {"seeds": 7, "widths": (10, 20)},
    "noise": {"seeds": 7},
    "learning-curves": {"seeds": (0, 1, 2, 3)},
    "attention": {
        "teachers": 7,
        "ratios": (0.25, *AttentionConfig().ratios),
        "one_parameter": None,
        "hidden_markov": None,
        "copying": None,
    },
    "trajectories": {"betas": (1.2, *TrajectoriesConfig().betas)},
    "finite-size": {"bits": (9, *FiniteSizeConfig().bits), "fit_from": 9900},
    "orbit-diagram": {},
    "orbit-diagram-zoom": {},
    "phase-diagram": {},
}


@pytest.mark.parametrize("name", GROWN)
def test_a_run_can_grow_along_its_axes_and_in_nothing_else(name):
    study, config = EXPERIMENTS[name].study, SIZES[name][1]
    grown = dataclasses.replace(config, **GROWN[name])
    assert study.record(grown) == study.record(config)
    for axis, values in study.axes(config).items():
        assert set(values) <= set(study.axes(grown)[axis])
    for field in set(vars(config)) - set(GROWN[name]):
        value = getattr(config, field)
        if type(value) in (int, float):
            other = dataclasses.replace(config, **{field: value / 2 if type(value) is float else value + 2})
            assert study.record(other) != study.record(config), field


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_templates_have_a_title_a_lead_and_a_footer(name):
    template = EXPERIMENTS[name].study.template().read_text()
    title, lead, *_ = template.split("\n\n")
    assert title.startswith("# ") and "\n" not in title and not lead.startswith(("#", "{"))
    assert template.count("\n---\n") == 1
    # Every figure says what it shows to readers who do not see it.
    assert all(re.search(r'figure\("\w+", .{15,}\) %', line) for line in template.splitlines() if "call figure" in line)


CONFIGS = {type(config) for sizes in SIZES.values() for config in sizes} | {OnePathConfig, OneParameterConfig}
CONFIGS |= {HiddenMarkovConfig, CopyingConfig}
# What no field of a type may be.
NEVER = {
    int: (-1, 1.5, True, "1"),
    int | None: (-1, 0, 1.5),
    float: (np.nan, np.inf, "1"),
    tuple[float, float]: ((2.0, 1.0), (5.0, 5.0), (0.0, np.nan)),
}


@pytest.mark.parametrize("kind", sorted(CONFIGS, key=lambda kind: kind.__name__))
def test_every_field_is_checked_by_its_type(kind):
    for name, hint in get_type_hints(kind).items():
        for value in NEVER.get(hint, ()):
            with pytest.raises(ValueError, match=f"^{name}: got "):
                kind(**{name: value})


ASCENDING = "expected at least one {}, in ascending order"
POSITIVE, WHOLE = "expected a number above 0", "expected a whole number, 1 or more"
BAD = [
    *(
        (kind, {name: value}, ASCENDING.format(noun))
        for kind, name, noun in [
            (MarkovConfig, "widths", "width"),
            (OneShotConfig, "widths", "width"),
            (OneShotConfig, "temperatures", "temperature"),
            (NoiseConfig, "temperatures", "temperature"),
            (ResidualsConfig, "widths", "width"),
            (WidthConvergenceConfig, "widths", "width"),
            (TeacherConfig, "widths", "width"),
            (TeacherConfig, "ratios", "ratio"),
            (OnePathConfig, "widths", "width"),
            (AttentionConfig, "ratios", "ratio"),
            (OneParameterConfig, "widths", "width"),
            (HiddenMarkovConfig, "examples", "number"),
            (CopyingConfig, "ratios", "ratio"),
            (FiniteSizeConfig, "bits", "number"),
            (TrajectoriesConfig, "betas", "value"),
        ]
        for value in ((), (2, 1))
    ),
    (MarkovConfig, {"seeds": 0}, WHOLE),
    (MarkovConfig, {"seed": -1}, "expected a whole number, zero or more"),
    (MarkovConfig, {"widths": (0,)}, WHOLE),
    (MarkovConfig, {"components": 101}, "expected at most 100, the training examples"),
    (MarkovConfig, {"temperature": -0.1}, "expected a finite number, zero or more"),
    (MarkovConfig, {"variants": ()}, "expected at least one variant"),
    (MarkovConfig, {"variance": 0.0}, POSITIVE),
    (MarkovConfig, {"sampled_up_to": 0}, WHOLE),
    (MarkovConfig, {"temperature": 0.0}, "expected a number above 0 where something is sampled"),
    (OneShotConfig, {"temperatures": (0.0,)}, POSITIVE),
    (OneShotConfig, {"variance": 0.0}, POSITIVE),
    (OneShotConfig, {"components": 601}, "expected at most 600, the training examples"),
    (ResidualsConfig, {"temperature": 0.0}, POSITIVE),
    (ResidualsConfig, {"variance": -1.0}, POSITIVE),
    (ResidualsConfig, {"feature_width": 7}, "expected an even number"),
    (NoiseConfig, {"noise_variance": 0.0}, POSITIVE),
    (NoiseConfig, {"tasks": ("images",)}, "expected one or more of 'hidden Markov', 'one-shot'"),
    (NoiseConfig, {"cases": ("Laplace",)}, "expected 'Gaussian' first"),
    (OrbitDiagramConfig, {"between": (2.0, 1.0)}, "expected a lower and a higher number"),
    (OrbitDiagramConfig, {"epsilon": 1.5}, "expected a number from 0 to 1"),
    (OrbitDiagramConfig, {"near": 0.0}, POSITIVE),
    (FiniteSizeConfig, {"copies": 1}, "expected 2 or more"),
    (FiniteSizeConfig, {"plain_bits": (98,)}, "expected some of"),
    (FiniteSizeConfig, {"fit_from": 10**10}, "expected two or more of the bits"),
    (WidthConvergenceConfig, {"sampled_widths": (5,)}, "expected some of the widths"),
    (WidthConvergenceConfig, {"temperature": 0.0}, POSITIVE),
    (TeacherConfig, {"temperature": 0.0}, POSITIVE),
    (TeacherConfig, {"attention_scale": 0.0}, POSITIVE),
    (TeacherConfig, {"teachers": 1}, "expected 2 or more"),
    (TeacherConfig, {"exact_teachers": 1}, "expected 2 or more"),
    (TeacherConfig, {"widths": (5, 10)}, "expected 6 or more"),
    (TeacherConfig, {"test_examples": 128}, "expected more than 128"),
    (LearningCurvesConfig, {"learning_rate": 0.0}, POSITIVE),
    (AttentionConfig, {"normalisations": ("cubic",)}, "expected one or both of"),
    (AttentionConfig, {"noise": 0.0}, POSITIVE),
    (OneParameterConfig, {"scale": 0.0}, POSITIVE),
    (LearningCurvesConfig, {"seeds": (1, 1)}, ASCENDING.format("seed")),
    (TrainedNetworksConfig, {"families": ()}, "expected at least one family"),
    (OnePathConfig, {"temperature": 0.0}, POSITIVE),
    (PruningConfig, {"widths": ()}, "expected at least one number"),
    (PruningConfig, {"widths": (0,)}, WHOLE),
    (PruningConfig, {"temperatures": (0.0,)}, POSITIVE),
    (PruningConfig, {"finetuned_removed": (0,)}, WHOLE),
    (PruningConfig, {"finetuned_random": 2000}, "expected at most 1000, the random orders"),
    (PruningConfig, {"finetuned_orders": ("alphabetical",)}, "expected names from"),
    (PruningConfig, {"finetuning_rate": 0}, POSITIVE),
]


@pytest.mark.parametrize(("kind", "changes", "message"), BAD, ids=lambda value: getattr(value, "__name__", None))
def test_bad_settings_are_refused_before_anything_runs(kind, changes, message):
    (name,) = changes
    with pytest.raises(ValueError, match=f"^{name}: got .*; {message}"):
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
    with pytest.raises(ValueError, match=r"keys: got \(\); expected at least one number, in ascending order"):
        module.CondensationConfig(keys=())


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
