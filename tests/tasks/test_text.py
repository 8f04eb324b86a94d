from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile

import numpy as np
import pytest

from thermoformer.tasks import LabelledTexts, files, read_labelled, read_text, sst2, text, trec

FIVE = LabelledTexts(tuple("abcde"), np.array([0, 1, 2, 0, 1]), ("x", "y", "z"))


def glue_zip(path, *, train=3, dev=5):
    """A zip file in the form of GLUE's, with sentences that name their line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for part, count in (("train", train), ("dev", dev)):
            rows = "".join(f"{part} {row} \t{row % 2}\n" for row in range(count))
            archive.writestr(f"SST-2/{part}.tsv", "sentence\tlabel\n" + rows)
        archive.writestr("SST-2/test.tsv", "index\tsentence\n0\tno label\n")
    return path


def test_subsets_keep_texts_labels_and_classes_together():
    chosen = FIVE.subset(np.array([4, 0]))
    assert chosen.texts == ("e", "a") and chosen.labels.tolist() == [1, 0] and chosen.classes == FIVE.classes
    for part in (FIVE.sample(5, seed=3), *FIVE.split(2, seed=3)):
        for letter, label in zip(part.texts, part.labels, strict=True):
            assert label == FIVE.labels[FIVE.texts.index(letter)]


def test_samples_repeat_and_have_no_example_twice():
    many = LabelledTexts(tuple(map(str, range(100))), np.zeros(100, int), ("one",))
    assert many.sample(30, 5).texts == many.sample(30, 5).texts != many.sample(30, 6).texts
    assert len(set(many.sample(30).texts)) == 30
    drawn, others = many.split(30, 5)
    assert drawn.texts == many.sample(30, 5).texts and set(drawn.texts) | set(others.texts) == set(many.texts)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: FIVE.sample(6), "count: got 6; expected at most 5 of 5 texts"),
        (lambda: FIVE.sample(0), "count: got 0; expected a whole number, 1 or more"),
        (lambda: FIVE.sample(2, -1), "seed: got -1; expected a whole number, zero or more"),
        (lambda: FIVE.split(5), "count: got 5; expected at most 4 of 5 texts"),
        (lambda: FIVE.subset([0]).split(1), "count: got 1; expected two or more texts"),
        (lambda: FIVE.subset([5]), "indices: got 5 to 5; expected 0 to 4"),
        (lambda: FIVE.subset([]), "indices: .*expected one or more whole numbers"),
        (lambda: FIVE.subset([True, False]), "indices: .*expected one or more whole numbers"),
        (lambda: LabelledTexts((), np.array([], int), ("x",)), "texts: got none; expected at least one"),
        (
            lambda: LabelledTexts(("a",), np.array([0, 1]), ("x", "y")),
            "labels: got 2 labels; expected 1, one per example",
        ),
        (lambda: LabelledTexts(("a",), np.array([2]), ("x", "y")), "labels: got 2 to 2; expected 0 to 1"),
        (lambda: LabelledTexts(("a",), np.array([0.5]), ("x",)), "labels: got float64 .*expected whole numbers"),
        (lambda: LabelledTexts("abc", np.array([0]), ("x",)), "texts: got str; expected a sequence of str"),
        (lambda: trec("dev"), "part: got 'dev'; expected one of 'train', 'test'"),
        (lambda: sst2("validation"), "part: got 'validation'; expected one of 'train', 'dev', 'test'"),
    ],
)
def test_wrong_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_file_of_the_users(tmp_path):
    file = tmp_path / "texts.tsv"
    # A header, Windows line ends, a byte order mark, a blank line, and a separator that is no line end.
    file.write_bytes("\ufeffSentence\tLabel\r\nhé\u2028llo \tb\r\n\r\n good\ta\r\n".encode())
    found = read_labelled(str(file))
    assert found.texts == ("hé\u2028llo", "good") and found.classes == ("a", "b") and found.labels.tolist() == [1, 0]
    file.write_text("ten\t10\ntwo\t2\nminus\t-1")
    assert read_labelled(file).classes == ("-1", "2", "10")
    for word in ("many", "--3", "²"):
        file.write_text(f"ten\t10\ntwo\t2\nmore\t{word}", encoding="utf-8")
        assert read_labelled(file).classes == tuple(sorted(("10", "2", word)))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"good\t1\nno label here\nbad\t0\n", "line 2: 'no label here'; expected a text, a tab and a label"),
        (b"text\tlabel\n\ngood\t1\nbad\t \n", r"line 4: 'bad\\t '; expected"),
        (b"\t1\n", r"line 1: '\\t1'; expected"),
        (b"a\tb\t1\n", r"line 1: 'a\\tb\\t1'; expected"),
        (b"", "which is empty"),
        (b"\n \n", "which is empty"),
        (b"text\tlabel\n", "which is empty"),
        (b"good\t1\nalso good\t1\n", "where every label is '1'; expected two or more classes"),
        (b"good\t1\nbad \xe9\t0\n", "line 2 with the byte 0xe9; expected UTF-8"),
    ],
)
def test_a_wrong_file_is_refused_with_the_line(tmp_path, content, message):
    (tmp_path / "wrong.tsv").write_bytes(content)
    with pytest.raises(ValueError, match=f"path: got .*wrong.tsv.*{message}"):
        read_labelled(tmp_path / "wrong.tsv")


def test_a_file_that_is_too_large_or_not_there(tmp_path, monkeypatch):
    file = tmp_path / "large.tsv"
    file.write_text("good\t1\nbad\t0\n")
    monkeypatch.setattr(text, "LARGEST_FILE", 5)
    for read in (read_labelled, read_text):
        with pytest.raises(ValueError, match="large.tsv of more than 0 MB; expected a smaller file"):
            read(file)
        with pytest.raises(FileNotFoundError, match="path: got .*nowhere.txt, which is not there; expected a text"):
            read(tmp_path / "nowhere.txt")
        with pytest.raises(OSError, match="which is a folder"):
            read(tmp_path)


def test_plain_text(tmp_path):
    file = tmp_path / "story.txt"
    file.write_bytes("\ufeffOnce upon\na tïme\n".encode())
    assert read_text(file) == "Once upon\na tïme\n"
    file.write_text(" \n")
    with pytest.raises(ValueError, match="story.txt, which is empty; expected a file with text"):
        read_text(file)
    file.write_bytes(b"one\n\xff\xfe")
    with pytest.raises(ValueError, match="story.txt, line 2 with the byte 0xff; expected UTF-8"):
        read_text(file)


def test_questions_are_latin_1_with_coarse_labels(tmp_path, monkeypatch):
    file = tmp_path / "text" / "trec" / "TREC_10.label"
    file.parent.mkdir(parents=True)
    file.write_bytes("HUM:ind Who was Esqu\xedvel ?\nABBR:exp What is AT&T ?\n".encode("latin-1"))
    monkeypatch.setenv("THERMOFORMER_DATA", str(tmp_path))
    found = trec("test")
    assert found.texts == ("Who was Esquível ?", "What is AT&T ?") and found.labels.tolist() == [3, 0]
    for content, message in (("HUM:ind Who ?\nhello", "line 2: 'hello'; expected CLASS"), ("", "which is empty")):
        file.write_text(content)
        with pytest.raises(ValueError, match=message):
            trec("test")


def test_the_sentences_of_glue_are_dealt_in_turns(tmp_path, monkeypatch):
    file = glue_zip(tmp_path / "cache" / "text" / "sst2" / "SST-2.zip")
    checksum = hashlib.sha256(file.read_bytes()).hexdigest()
    monkeypatch.setitem(files.FILES, "text/sst2/SST-2.zip", ("http://127.0.0.1:9/", checksum))
    monkeypatch.setattr(files.pooch, "os_cache", lambda name: tmp_path / "cache")
    monkeypatch.delenv("THERMOFORMER_DATA", raising=False)
    assert sst2("train").texts == ("train 0", "train 1", "train 2") and sst2().labels.tolist() == [0, 1, 0]
    assert sst2("dev").texts == ("dev 0", "dev 2", "dev 4") and sst2("test").texts == ("dev 1", "dev 3")
    assert sst2("test").labels.tolist() == [1, 1] and sst2("test").classes == ("negative", "positive")


def test_the_users_own_sentences_come_first_and_splits_are_not_mixed(tmp_path, monkeypatch):
    folder = tmp_path / "text" / "sst2"
    glue_zip(folder / "SST-2.zip")
    monkeypatch.setenv("THERMOFORMER_DATA", str(tmp_path))
    assert sst2("train").texts[0] == "train 0"
    (folder / "train.tsv").write_text("mine\t1")
    assert sst2("train").texts == ("mine",)
    with pytest.raises(FileNotFoundError, match="part: got 'dev'; .*\\['train'\\], as .*dev.tsv is missing"):
        sst2("dev")
    (folder / "train.tsv").write_text("mine\tgood")
    with pytest.raises(ValueError, match="train.tsv with the label 'good'; expected 0"):
        sst2("train")
    (folder / "train.tsv").unlink()
    (folder / "SST-2.zip").write_bytes(b"no zip")
    with pytest.raises(ValueError, match="SST-2.zip, which is damaged .*expected a whole zip file with SST-2/dev.tsv"):
        sst2("test")


def test_the_real_files(real_data):
    assert [len(trec(part)) for part in ("train", "test")] == [5452, 500]
    assert np.bincount(trec().labels).tolist() == [86, 1162, 1250, 1223, 835, 896]
    assert np.bincount(trec("test").labels).tolist() == [9, 138, 94, 65, 81, 113]
    assert [len(sst2(part)) for part in ("train", "dev", "test")] == [6920, 872, 1821]
    assert np.bincount(sst2().labels).tolist() == [3310, 3610]


def test_the_room_of_tasks_needs_no_torch():
    program = "import sys; import thermoformer.tasks; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
