"""What comes from outside: addresses and files. Whatever is wrong with them is said in a sentence."""

from __future__ import annotations

import io
import zipfile
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from thermoformer.app.dynamics_view import DynamicsChoice
from thermoformer.app.links import from_link, to_link
from thermoformer.app.uploads import LARGEST_ARRAYS, LARGEST_FILE, MOST_ARRAYS, MOST_CELLS, Upload, table, upload_of


@dataclass(frozen=True)
class Choice:
    """One field of every kind, one of them with bounds."""

    width: float = 10.0
    seed: int = 0
    task: str = "markov"
    layers: tuple[str, ...] = ("good+uniform", "random")
    shifts: tuple[float, ...] = (0.5,)

    def __post_init__(self) -> None:
        if not self.width > 0:
            raise ValueError(f"width: got {self.width}; expected a positive number")


def test_a_link_brings_back_the_choice():
    choice = Choice(0.1 + 0.2, 7, "other", ("good",), (1.0, -1e-300))
    assert from_link(Choice(), to_link(choice)) == (choice, [])
    assert to_link(Choice()) == {}


@pytest.mark.parametrize(
    ("link", "words"),
    [
        ({"width": "wide"}, "width: got 'wide'; expected a number; 10.0 is taken"),
        ({"width": "-1"}, "width: got -1.0; expected a positive number; 10.0 is taken"),
        ({"width": "nan"}, "width: got nan; expected a positive number"),
        ({"seed": "1.5"}, "seed: got '1.5'; expected a whole number"),
        ({"seed": ["1", "2"]}, "seed: got several values; expected one short value"),
        ({"task": "x" * 100_000}, "task: got too long a text"),
        ({"shifts": "1,,2"}, "shifts: got ''; expected a number"),
    ],
)
def test_links_that_say_nonsense(link, words):
    choice, (problem,) = from_link(Choice(), link)
    assert choice == Choice() and words in problem


def test_one_bad_value_does_not_cost_the_others():
    signs = "o +-+|+-\nv ++-|-+\nq -++|++\nk +--|-+"
    link = {"features": "table", "table": signs, "beta": "-1", "component": "1", "against": "9"}
    choice, problems = from_link(DynamicsChoice(), link)
    assert choice == DynamicsChoice(features="table", table=signs, component=1, against=1)
    assert [words.split(":")[0] for words in problems] == ["beta", "against"]
    # A usual value that does not fit what a link asks for is brought into range without a word.
    short, problems = from_link(DynamicsChoice(), {"features": "table", "table": signs})
    assert short == choice and problems == []
    lost, (problem,) = from_link(DynamicsChoice(), {"features": "table"})
    assert lost == DynamicsChoice() and problem.startswith("table: got 0 lines")


@given(st.dictionaries(st.sampled_from([*Choice.__dataclass_fields__, "other"]), st.text() | st.lists(st.text())))
def test_no_link_raises(link):
    choice, problems = from_link(Choice(), link)
    assert isinstance(choice, Choice) and len(problems) <= len(link)


def npz(**arrays) -> bytes:
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


def parts(upload: Upload) -> tuple[np.ndarray, np.ndarray, tuple[int, ...]]:
    return upload.xi, upload.labels, upload.heads


def test_npz_files_are_what_the_command_line_reads():
    xi, y = np.random.default_rng(0).normal(size=(6, 4, 3)), np.sign(np.arange(6) - 2.5)
    found, labels, heads = parts(upload_of("MINE.NPZ", npz(xi=xi, y=y)))
    np.testing.assert_array_equal(found, xi)
    assert labels.tolist() == y.tolist() and heads == (4,)
    x, attention = np.ones((6, 2, 3)), np.full((6, 2, 2, 2), 0.5)
    found, _, heads = parts(upload_of("mine.npz", npz(x=x, attention_1=attention, attention_2=attention, y=y)))
    assert found.shape == (6, 4, 3) and heads == (2, 2)


def test_csv_files():
    found, labels, heads = parts(upload_of("a.csv", "\ufeffa, label ,b\n1,1,2\n\n3,-1,4\n".encode()))
    assert found.tolist() == [[[1.0, 2.0]], [[3.0, 4.0]]] and labels.tolist() == [1.0, -1.0] and heads == (1,)
    assert table("signs.csv", b"first,second\n1,-1\n").tolist() == [[1.0, -1.0]]
    assert table("signs.npz", npz(signs=np.eye(2, dtype=int))).tolist() == [[1.0, 0.0], [0.0, 1.0]]


class Trap:
    """Unpickling it would be heard of."""

    def __reduce__(self):
        return (pytest.fail, ("a file was unpickled",))


def claiming(shape: str, kind: str = "'<f8'") -> bytes:
    """An archive whose array claims a shape and holds eight bytes."""
    header = f"{{'descr': {kind}, 'fortran_order': False, 'shape': {shape}, }}"
    header = header.ljust(117) + "\n"
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("y.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + bytes(8))
    return stream.getvalue()


def repacked(packing: int) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", packing) as archive:
        archive.writestr("y.npy", b"1")
    return stream.getvalue()


def packed(**arrays) -> bytes:
    stream = io.BytesIO()
    np.savez_compressed(stream, **arrays)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.txt", b"1", "file: got the ending '.txt'; expected .npz or .csv"),
        ("a", b"1", "file: got the ending 'none'; expected .npz or .csv"),
        ("a.csv", bytes(LARGEST_FILE + 1), "file: got 8.0 MiB; expected at most 8 MiB"),
        ("a.csv", b"", "file: got no rows"),
        ("a.csv", b"\xff\xfe\x00", "file: got bytes that are no text"),
        ("a.csv", b"1,2\n3\n", "file: got 1 values in row 2; expected 2, as in the first row"),
        ("a.csv", b"label,b\n1,x\n", "file: got 'x' in row 1, column 2; expected a finite number"),
        ("a.csv", b"label,b\n1,nan\n", "file: got 'nan' in row 1, column 2; expected a finite number"),
        ("a.csv", b"1,2\n", "file: got no column named label"),
        ("a.csv", b"label,b,b\n1,2,3\n", "file: got a name twice in its first row"),
        ("a.csv", b"label,p.a,p.b,q.a\n1,2,3,4\n", "file: got features by path (p: 2, q: 1)"),
        ("a.csv", b"label\n1\n", "file: got features by path (none)"),
        ("a.csv", b'label,"b\n1,2\n', "file: got a row that is not csv"),
        ("a.csv", b"label\n", "file: got 0 rows of 1"),
        ("a.csv", b"label,b\n" + b"1,2\n" * (MOST_CELLS // 2 + 1), f"file: got more than {MOST_CELLS} values"),
        ("a.csv", b"1\n" * (LARGEST_FILE // 2), f"file: got more than {MOST_CELLS} values"),
        ("a.npz", b"PK and nothing", "or a damaged one"),
        ("a.npz", npz(xi=np.ones((2, 2, 2)), y=np.ones(2))[:-30], "or a damaged one"),
        ("a.npz", npz(xi=np.ones((2, 2, 2))), "file: got arrays xi; expected y with xi"),
        (
            "a.npz",
            npz(**{f"a{number}": np.ones(1) for number in range(MOST_ARRAYS + 1)}),
            "file: got the file with 17 arrays",
        ),
        (
            "a.npz",
            npz(y=np.array([Trap()], dtype=object)),
            "with y.npy, an array of Python objects; expected arrays of numbers only",
        ),
        ("a.npz", claiming("(1000000000000,)"), "with y.npy, which does not hold its shape (1000000000000,)"),
        (
            "a.npz",
            packed(y=np.zeros(LARGEST_ARRAYS // 8 + 2**17)),
            "take 65 MiB in memory; expected at most 64 MiB",
        ),
        ("a.npz", repacked(zipfile.ZIP_BZIP2), "file: got the file with y.npy in another compression"),
        ("a.npz", repacked(zipfile.ZIP_LZMA), "file: got the file with y.npy in another compression"),
        ("a.npz", packed(xi=np.zeros((4, 4, 600_000), np.int8)), "whose arrays take 73 MiB in memory"),
        ("a.npz", npz(xi=np.ones((4, 17, 2)), y=np.ones(4)), "xi: got 17 paths; expected 16 or fewer"),
        ("a.npz", npz(xi=np.ones((3, 2, 2)), y=np.ones(3)), "xi: got 3 examples; expected 4 to 1000"),
        # 40 heads in each of five layers are a hundred million paths.
        (
            "a.npz",
            npz(x=np.ones((4, 1, 40)), y=np.ones(4), **{f"attention_{n}": np.ones((4, 40, 1, 1)) for n in range(1, 6)}),
            "xi: got 102400000 paths; expected 16 or fewer",
        ),
        ("a.npz", claiming("(1, 8"), "with y.npy, which is not an array"),
        ("a.npz", claiming("(" * 90), "with y.npy, which is not an array"),
        ("a.npz", claiming("(" + "-" * 80 + "1,)"), "with y.npy, which"),
        ("a.npz", claiming("(1,)", kind="('<f8',)"), "with y.npy, which is not an array"),
        ("a.npz", claiming("(0, 10" + "0" * 29 + ")"), "file: got"),
        ("a.npz", claiming("(True, 1)"), "with y.npy, which"),
        ("a.npz", claiming("(-1,)"), "with y.npy, which"),
    ],
)
def test_files_that_are_refused(name, content, words):
    with pytest.raises(ValueError) as caught:
        upload_of(name, content)
    assert words in str(caught.value) and "/tmp" not in str(caught.value)


@given(st.integers(0, 10**9), st.integers(1, 255), st.booleans())
def test_a_damaged_archive_gives_a_sentence_or_is_read(place, change, small):
    content = bytearray((npz if small else packed)(xi=np.arange(48.0).reshape(8, 2, 3), y=np.arange(8.0)))
    content[place % len(content)] ^= change
    for read in (upload_of, table):
        try:
            read("a.npz", bytes(content))
        except ValueError as error:
            assert "got" in str(error) and "expected" in str(error)


@pytest.mark.parametrize("ending", [".csv", ".npz"])
@given(content=st.binary(max_size=200))
def test_no_file_gives_anything_but_a_sentence(ending, content):
    with pytest.raises(ValueError, match="file: got"):
        upload_of("a" + ending, b"\n" + content)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (npz(a=np.ones((2, 2)), b=np.ones((2, 2))), "file: got arrays a, b; expected one array"),
        (npz(a=np.ones(3)), "shape (3,)"),
        (npz(a=np.full((2, 2), np.nan)), "expected finite numbers"),
        (npz(a=np.array([["x"]])), "expected finite numbers"),
    ],
)
def test_tables_that_are_refused(content, words):
    with pytest.raises(ValueError) as caught:
        table("a.npz", content)
    assert words in str(caught.value)
