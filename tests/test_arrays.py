from __future__ import annotations

import pickle
import zipfile

import numpy as np
import pytest

from thermoformer.arrays import read_arrays
from thermoformer.learning import PathFeatures, random_attention

RANDOM = np.random.default_rng(0)
XI = RANDOM.normal(size=(6, 4, 3))
X = RANDOM.normal(size=(6, 5, 3))
Y = np.sign(RANDOM.normal(size=6))
ATTENTION = [np.asarray(random_attention(X, heads=2, key=layer)) for layer in (0, 1)]


@pytest.fixture
def saved(tmp_path):
    def save(**arrays):
        np.savez(tmp_path / "mine.npz", **arrays)
        return tmp_path / "mine.npz"

    return save


def tokens(**changes):
    return {"x": X, "attention_1": ATTENTION[0], "attention_2": ATTENTION[1], "y": Y} | changes


def test_attentioned_inputs_come_back_as_they_were(saved):
    arrays = read_arrays(saved(xi=XI, y=Y, note=np.arange(3)))
    np.testing.assert_array_equal(arrays.features.values, XI)
    np.testing.assert_array_equal(arrays.labels, Y)
    assert arrays.heads is None and arrays.test_features is None and arrays.test_labels is None


@pytest.mark.parametrize("readout", ["last", "first", "mean"])
def test_tokens_with_attention_give_the_features_of_the_library(saved, readout):
    arrays = read_arrays(saved(**tokens()), readout=readout)
    expected = PathFeatures.from_attention(X, ATTENTION, readout)
    np.testing.assert_array_equal(arrays.features.values, expected.values)
    assert arrays.heads == (2, 2)


def test_layers_are_put_in_the_order_of_their_numbers(saved):
    # Eleven layers: as text, attention_10 sorts before attention_2.
    layers = {f"attention_{layer}": random_attention(X, heads=1, key=layer) for layer in range(1, 12)}
    arrays = read_arrays(saved(x=X, y=Y, **layers))
    np.testing.assert_array_equal(arrays.features.values, PathFeatures.from_attention(X, list(layers.values())).values)


def test_examples_to_predict_come_with_or_without_labels(saved):
    assert read_arrays(saved(xi=XI, y=Y, xi_test=XI[:2])).test_labels is None
    arrays = read_arrays(saved(xi=XI, y=Y, xi_test=XI[:2], y_test=Y[:2]))
    np.testing.assert_array_equal(arrays.test_features.values, XI[:2])
    np.testing.assert_array_equal(arrays.test_labels, Y[:2])
    test = {"x_test": X[:2], "attention_test_1": ATTENTION[0][:2], "attention_test_2": ATTENTION[1][:2]}
    arrays = read_arrays(saved(**tokens(**test)))
    np.testing.assert_array_equal(arrays.test_features.values, arrays.features.values[:2])


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"xi": XI}, r"file: got arrays xi; expected y with xi, or y with x and attention_1"),
        ({"y": Y}, r"file: got arrays y; expected"),
        ({"xi": XI, "x": X, "y": Y}, r"file: got arrays x, xi, y; expected"),
        ({"x": X, "y": Y}, r"file: got arrays x, y; expected attention_1, attention_2"),
        (tokens(attention_4=ATTENTION[0]), r"file: got arrays .*attention_4.*; expected attention_1"),
        ({"xi": XI[0], "y": Y}, r"xi: got shape \(4, 3\); expected 3 axes \[example, path, feature\]"),
        ({"xi": np.where(XI > 2, np.nan, XI).clip(max=np.inf) * np.nan, "y": Y}, r"xi: got 72 NaN .*; expected finite"),
        ({"xi": XI.astype(str), "y": Y}, r"xi: got an array of type <U\d+; expected an array of real numbers"),
        ({"xi": XI, "y": Y[:5]}, r"y: got 5 labels; expected 6, one per example"),
        (tokens(attention_2=ATTENTION[1] * 2), r"attention_2: got rows that miss a sum of 1 by up to 1; expected"),
        (tokens(attention_2=ATTENTION[1][:5]), r"attention\[1\]: got 5 examples of 5 tokens; expected 6 examples"),
        ({"xi": XI, "y": Y, "y_test": Y}, r"file: got y_test without inputs; expected xi_test"),
        ({"xi": XI, "y": Y, "xi_test": XI[:, :3]}, r"xi_test: got \(3, 3\) .*; expected \(4, 3\)"),
        ({"xi": XI, "y": Y, "xi_test": XI * np.inf}, r"xi_test: got 72 NaN or infinite entries; expected finite"),
        ({"xi": XI, "y": Y, "xi_test": XI, "y_test": Y[:2]}, r"y_test: got 2 labels; expected 6"),
        (
            {"xi": XI, "y": Y, "xi_test": XI, "y_test": Y > 0},
            r"y_test: got a label of 0; expected -1 and 1 only, as in",
        ),
        ({"xi": XI, "y": Y > 0, "xi_test": XI, "y_test": Y}, r"y_test: got a label of -1; expected 0 and 1 only"),
        ({"xi": XI, "y": XI[:, :2, 0]}, r"y: got shape \(6, 2\); expected 1 axis"),
        (tokens(x_test=X), r"expected attention_test_1, attention_test_2, ... beside x_test"),
        (tokens(x_test=X, attention_test_1=ATTENTION[0]), r"attention_test: got heads \(2,\); expected \(2, 2\)"),
    ],
)
def test_what_is_wrong_with_the_arrays_is_named(saved, arrays, message):
    with pytest.raises(ValueError, match=message):
        read_arrays(saved(**arrays))


@pytest.mark.parametrize(
    ("labels", "test_labels", "notes"),
    [
        (Y, Y[:2], ()),
        (Y > 0, Y[:2] > 0, ("y: labels 0 and 1 are read as −1 and +1",)),
        ((Y + 1) / 2, (Y[:1] + 1) / 2, ("y: labels 0 and 1 are read as −1 and +1",)),
        (Y[:, None], Y[:2, None], ("y: [6, 1] is read as [6]", "y_test: [2, 1] is read as [2]")),
    ],
)
def test_how_classes_were_coded_is_said_and_changes_nothing(saved, labels, test_labels, notes):
    count = len(test_labels)
    arrays = read_arrays(saved(xi=XI, y=labels, xi_test=XI[:count], y_test=test_labels))
    np.testing.assert_array_equal(arrays.labels, Y)
    np.testing.assert_array_equal(arrays.test_labels, Y[:count])
    assert arrays.notes == notes


def test_numbers_to_be_met_stay_as_they_are(saved):
    # 0 and 1 among other numbers are no classes.
    values = [0.0, 1.0, 2.0, 0.5, 0.0, 1.0]
    arrays = read_arrays(saved(xi=XI, y=values, xi_test=XI, y_test=values))
    assert arrays.labels.tolist() == arrays.test_labels.tolist() == values and arrays.notes == ()


def write_csv(path, header, table):
    np.savetxt(path, table, "%.17g", delimiter=",", header=header, comments="")
    return path


def test_a_csv_file_holds_the_same_arrays(saved, tmp_path):
    names = ",".join(f"{path}.{feature}" for path in "abcd" for feature in "xyz")
    table = np.column_stack([XI.reshape(6, 12), Y])
    arrays = read_arrays(write_csv(tmp_path / "mine.CSV", f"{names},label", table))
    np.testing.assert_array_equal(arrays.features.values, XI)
    np.testing.assert_array_equal(arrays.labels, Y)
    assert arrays.heads is None
    one = read_arrays(write_csv(tmp_path / "one.csv", "label,a,b", np.column_stack([Y > 0, XI[:, 0, :2]])))
    np.testing.assert_array_equal(one.features.values, XI[:, :1, :2])
    np.testing.assert_array_equal(one.labels, Y)


def test_csv_files_that_are_refused_name_what_would_do(tmp_path):
    file = tmp_path / "mine.csv"
    with pytest.raises(FileNotFoundError, match=r"not there; expected a csv file with a column named label"):
        read_arrays(file)
    for content, message in (
        (b"1,2\n3,4\n", "file: got no column named label; expected a first row of names"),
        (b"label,a\n1,?\n", r"file: got '\?' in row 1, column 2; expected a finite number"),
    ):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            read_arrays(file)


def test_an_unknown_readout_is_refused(saved):
    with pytest.raises(ValueError, match=r"readout: got 'middle'; expected one of 'last', 'first', 'mean'"):
        read_arrays(saved(**tokens()), readout="middle")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"file: got .*none\.npz, which is not there; expected an npz file"):
        read_arrays(tmp_path / "none.npz")


def test_foreign_files_are_refused(tmp_path):
    foreign = tmp_path / "foreign.npz"
    for content in (b"", b"hello", pickle.dumps({"xi": 1})):
        foreign.write_bytes(content)
        with pytest.raises(ValueError, match=r"which is not an npz file, or a damaged one .*; expected an npz file"):
            read_arrays(foreign)
    np.save(tmp_path / "one.npy", XI)
    with pytest.raises(ValueError, match="which is not an npz file"):
        read_arrays(tmp_path / "one.npy")
    with zipfile.ZipFile(foreign, "w") as archive:
        archive.writestr("letter.txt", "hello")
    with pytest.raises(ValueError, match="file: got arrays none; expected y"):
        read_arrays(foreign)


def test_a_damaged_file_is_refused(saved):
    path = saved(xi=XI, y=Y)
    content = bytearray(path.read_bytes())
    content[200:260] = bytes(60)
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"with xi\.npy, which is not an array, or a damaged one \(Bad CRC"):
        read_arrays(path)


class Trap:
    """Unpickling this would make a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_python_objects_are_refused_and_never_unpickled(saved, tmp_path):
    trap = tmp_path / "sprung"
    path = saved(xi=np.array([Trap(trap)], dtype=object), y=Y)
    with pytest.raises(ValueError, match=r"an array of Python objects; expected arrays of numbers only"):
        read_arrays(path)
    assert not trap.exists()


def test_paths_are_counted_before_they_are_computed(saved, monkeypatch):
    # 40 heads in each of five layers are a hundred million paths.
    x, layer = np.ones((4, 1, 40)), np.ones((4, 40, 1, 1))
    layers = {f"attention_{number}": layer for number in range(1, 6)}
    with pytest.raises(ValueError, match=r"attention: got 102400000 paths, .*; expected at most 2048"):
        read_arrays(saved(x=x, y=np.ones(4), **layers))
    with pytest.raises(ValueError, match=r"xi_test: got 2049 paths, .*; expected at most 2048"):
        read_arrays(saved(xi=XI, y=Y, xi_test=np.ones((1, 2049, 3))))
    monkeypatch.setattr("thermoformer._validation.machine_memory", lambda: 2**20)
    read_arrays(saved(x=x, y=np.ones(4), attention_1=layer))
    with pytest.raises(ValueError, match="attention: got 4 examples of 1600 paths and 40 features, which needs"):
        read_arrays(saved(x=x, y=np.ones(4), attention_1=layer, attention_2=layer))


def test_heads_come_from_the_file_or_the_caller_and_must_agree(saved):
    from_attention = read_arrays(saved(**tokens()))
    assert from_attention.heads_per_layer(None) == from_attention.heads_per_layer((2, 2)) == (2, 2)
    with pytest.raises(ValueError, match=r"heads: got \(4,\); expected \(2, 2\), as in the attention of the file"):
        from_attention.heads_per_layer((4,))
    bare = read_arrays(saved(xi=XI, y=Y))
    assert bare.heads_per_layer((4,)) == (4,)
    with pytest.raises(ValueError, match=r"heads: got nothing; expected .* the 4 paths of xi"):
        bare.heads_per_layer(None)
