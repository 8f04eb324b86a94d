"""The numbers of the Learning view against the public functions that they stand for."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest

from thermoformer.app import learning_view
from thermoformer.app.learning_view import (
    FEW_WIDTHS,
    WIDTHS,
    LearningChoice,
    LearningPicture,
    LearningWork,
    data_of_arrays,
    picture_of,
    widths_for,
    work_of,
)
from thermoformer.app.work import learning_lock
from thermoformer.learning import (
    Architecture,
    PathFeatures,
    Solution,
    gaussian_process,
    label_alignment,
    solve,
)

# Two paths and few examples: quick to compile.
SMALL = LearningChoice(layers=("good+random", "uniform"), train=25)


@pytest.fixture
def compilations():
    """Names of what XLA compiles during a test."""
    seen = []

    def listen(event: str, duration: float, **_: object) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            seen.append(duration)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield seen
    jax.monitoring.unregister_event_duration_listener(listen)


@pytest.fixture(scope="module")
def arrays():
    generator = np.random.default_rng(0)
    xi = generator.normal(size=(60, 4, 7))
    return xi, np.where(xi[:, 1, :3].sum(axis=1) > 0, 7, 3)


def finished(work: LearningWork) -> LearningPicture:
    work.finish()
    assert work.picture is not None
    return work.picture


def test_at_the_default_a_narrow_network_beats_the_gaussian_process():
    picture = picture_of(LearningChoice())
    assert picture.test_accuracy > picture.limit.accuracy + 0.1
    assert picture.path_names[np.argmax(picture.path_scores)] == "good→uniform"
    assert picture.solution.log_evidence > picture.limit.solution.log_evidence


def test_own_arrays_give_what_the_public_functions_give(arrays):
    xi, labels = arrays
    data = data_of_arrays(xi, labels, (2, 2), seed=4)
    picture = finished(LearningWork(data, 20, 0.1))
    assert picture.path_names[:2] == ("head 0→head 0", "head 0→head 1") and picture.data.classes == ("+3", "+7")
    assert (data.train.examples, data.test.examples) == (30, 30)
    order = np.random.default_rng(4).permutation(60)
    train, test = np.sort(order[:30]), np.sort(order[30:])
    y, features = np.where(labels == 7, 1.0, -1.0), PathFeatures.from_attentioned_inputs(xi)
    arch = Architecture((2, 2), 20)
    solution = solve(arch, features[train], y[train], temperature=0.1)
    limit = gaussian_process(arch, features[train], y[train], temperature=0.1)
    assert solution.stats.form == "dual"  # fewer dimensions than examples: what is solved is smaller than the kernel
    np.testing.assert_allclose(picture.solution.order_parameter, solution.order_parameter, rtol=0, atol=1e-9)
    np.testing.assert_allclose(picture.solution.log_evidence, solution.log_evidence, rtol=1e-10)
    np.testing.assert_allclose(picture.limit.solution.log_evidence, limit.log_evidence, rtol=1e-10)
    assert picture.test_accuracy == solution.predict(features[test]).accuracy(y[test])
    assert picture.train_accuracy == solution.predict(features[train]).accuracy(y[train])
    assert picture.limit.accuracy == limit.predict(features[test]).accuracy(y[test])
    for place in (0, 4, len(WIDTHS) - 1):
        at = solve(arch.replace(widths=WIDTHS[place]), features[train], y[train], temperature=0.1)
        assert picture.curve.accuracies[place] == at.predict(features[test]).accuracy(y[test])
    for kernel, overlaps in ((solution, picture.overlaps), (limit, picture.limit.overlaps)):
        expected = label_alignment(kernel.kernel(features[train]), y[train])[:30]
        np.testing.assert_allclose(overlaps, expected, rtol=0, atol=1e-9)


def test_shapes():
    picture = picture_of(SMALL)
    assert picture.solution.order_parameter.shape == (2, 2) and picture.kernel.shape == (25, 25)
    assert picture.overlaps.shape == picture.limit.overlaps.shape == (25,)
    assert picture.curve.accuracies.shape == picture.curve.converged.shape == picture.curve.widths.shape
    assert (np.diff(picture.kernel_labels) >= 0).all()


def test_continuous_sliders_compile_nothing(compilations):
    picture_of(SMALL)
    before = len(compilations)
    for name, values in {
        "width": (11, 800),
        "temperature": (0.3, 1e-4),
        "perpendicular_noise": (0.0, 2.5),
        "parallel_noise": (0.0, 0.3),
        "stay_probability": (0.9, 1.0),
        "seed": (1,),
    }.items():
        for value in values:
            picture_of(dataclasses.replace(SMALL, **{name: value}))
    assert len(compilations) == before
    jax.jit(lambda x: 2 * x)(np.ones(3)).block_until_ready()
    assert len(compilations) > before, "what is compiled is not counted"


def test_the_width_alone_solves_once(monkeypatch):
    choice = dataclasses.replace(SMALL, temperature=0.05)
    picture_of(choice)
    searches, continued = [], Solution.continued

    def counted(self, *, widths, **options):
        searches.append(widths)
        return continued(self, widths=widths, **options)

    monkeypatch.setattr(Solution, "continued", counted)
    monkeypatch.setattr(learning_view, "gaussian_process", pytest.fail)
    picture = picture_of(dataclasses.replace(choice, width=17))
    assert searches == [17] and len(picture.curve.widths) == len(widths_for(2, 25))
    assert dataclasses.replace(choice, width=17.0) == dataclasses.replace(choice, width=17)


def test_work_in_slices_and_turns():
    work = work_of(dataclasses.replace(SMALL, temperature=0.7))
    fractions = [work.fraction]
    while not work.done:
        work.advance()
        assert not learning_lock.locked()
        fractions.append(work.fraction)
        # The solution comes first, and its curve from the widest down.
        assert work.picture.width == SMALL.width and len(work.picture.curve.widths) == len(fractions) - 2
    assert fractions[0] == 0 and fractions[-1] == 1 and (np.diff(fractions) > 0).all()
    picture = finished(work)
    widths = picture.curve.widths.tolist()
    assert len(fractions) == 2 + len(widths) and widths == sorted(widths)


def test_many_readers_at_once():
    picture_of(SMALL)
    choices = [dataclasses.replace(SMALL, perpendicular_noise=0.5 + 0.1 * (place % 4)) for place in range(8)]
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(picture_of, choices))
    for choice, picture in zip(choices, together, strict=True):
        learning_view.data_of.cache_clear()
        alone = picture_of(choice)
        np.testing.assert_array_equal(alone.solution.order_parameter, picture.solution.order_parameter)
        np.testing.assert_array_equal(alone.curve.accuracies, picture.curve.accuracies)


def test_searches_that_are_cut_in_slices_end_at_the_same_place(monkeypatch):
    whole = picture_of(SMALL)
    monkeypatch.setattr(learning_view, "SLICE", 1.0)
    cut = work_of(SMALL)
    cut.advance()
    assert cut.picture is None and cut.fraction == 0
    picture = finished(cut)
    assert picture.solution.converged
    np.testing.assert_allclose(picture.solution.order_parameter, whole.solution.order_parameter, rtol=1e-7)


def test_expensive_problems_have_fewer_widths():
    assert widths_for(4, 100) == WIDTHS and widths_for(9, 200) == FEW_WIDTHS


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("perpendicular_noise", -1.0, "perpendicular_noise: got -1; expected a number from 0 to 20"),
        ("parallel_noise", np.nan, "parallel_noise: got 1 NaN or infinite entries"),
        ("stay_probability", 1.2, "stay_probability: got 1.2; expected a number from 0 to 1"),
        ("layers", "good", "layers: got 'good'; expected 1 to 2 lists of heads"),
        ("layers", (), "layers: got \\(\\); expected"),
        ("layers", ("good+bad",), "layers: got 'bad'; expected one of 'good', 'uniform', 'random'"),
        ("layers", ("good+good+good+good",), "layers: got 4 heads in one layer; expected 3 or fewer"),
        ("width", 3, "width: got 3; expected a number from 5 to 2000"),
        ("width", 10.5, "width: got 10.5; expected a whole number"),
        ("width", "wide", "width: got .wide.; expected one number"),
        ("temperature", 0.0, "temperature: got 0; expected a number from 0.0001 to 10"),
        ("train", True, "train: got True; expected one of 25, 50, 100, 200"),
        ("seed", -1, "seed: got -1; expected a whole number, zero or more"),
    ],
)
def test_choices_are_checked(field, value, message):
    with pytest.raises(ValueError, match=message):
        LearningChoice(**{field: value})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"xi": np.zeros((3, 4, 2))}, "xi: got 3 examples; expected 4 to 1000"),
        ({"xi": np.zeros((1001, 4, 2))}, "xi: got 1001 examples; expected 4 to 1000"),
        ({"xi": np.zeros((60, 17, 2))}, "xi: got 17 paths; expected 16 or fewer"),
        ({"xi": np.zeros((60, 16, 2100))}, "xi: got 2016000 numbers; expected 2000000 or fewer"),
        ({"xi": np.zeros((60, 4))}, "xi: got shape \\(60, 4\\); expected 3 axes"),
        ({"heads": (2, 3)}, "heads: got \\(2, 3\\); expected numbers whose product is 4"),
        ({"heads": ()}, "heads: got \\(\\); expected"),
        ({"labels": np.ones(60)}, "labels: got 1 different values; expected two"),
        ({"labels": np.arange(60)}, "labels: got 60 different values; expected two"),
        ({"labels": np.ones(59)}, "labels: got 59 labels; expected 60"),
        ({"labels": ["a"] * 60}, "labels: got an array of type"),
        ({"seed": -1}, "seed: got -1; expected a whole number, zero or more"),
    ],
)
def test_own_arrays_are_checked(arrays, changes, message):
    given = {"xi": arrays[0], "labels": arrays[1], "heads": (2, 2)} | changes
    with pytest.raises(ValueError, match=message):
        data_of_arrays(given.pop("xi"), given.pop("labels"), given.pop("heads"), **given)
