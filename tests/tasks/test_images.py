from __future__ import annotations

import gzip
import io
import zipfile

import numpy as np
import pytest
from PIL import Image
from small_images import data_folder, idx_gz, omniglot_zip

from thermoformer.tasks import ImageClasses, load_omniglot, load_other_images, split_classes
from thermoformer.tasks.images import PART_SIZES, read_characters, read_idx


@pytest.fixture
def small_data(tmp_path, monkeypatch):
    monkeypatch.setenv("THERMOFORMER_DATA", str(data_folder(tmp_path, characters=(3, 2))))
    return tmp_path


def test_characters_are_bright_on_dark_and_in_order(small_data):
    found = load_omniglot()
    assert found.images.shape == (5, 20, 32, 32) and found.images.dtype == np.uint8
    assert found.names[:2] == ("Alphabet/character01", "Alphabet/character02")
    # Three pixels in ten are ink, and resizing keeps the mean.
    assert 0.2 < found.images.mean() / 255 < 0.4
    with zipfile.ZipFile(small_data / "omniglot" / "images_background.zip") as archive:
        member = archive.read("images_background/Alphabet/character02/0002_03.png")
    ink = ~np.asarray(Image.open(io.BytesIO(member)))
    # An independent mean over areas: a triangle filter smooths a little more.
    edges = np.linspace(0, 105, 33)
    overlap = np.clip(
        np.minimum(edges[1:, None], np.arange(1, 106)) - np.maximum(edges[:-1, None], np.arange(105)), 0, 1
    )
    area = overlap @ ink @ overlap.T / (105 / 32) ** 2
    assert np.corrcoef(area.ravel(), found.images[1, 2].ravel())[0, 1] > 0.95


def test_a_few_characters_are_the_first_ones(small_data):
    np.testing.assert_array_equal(load_omniglot(classes=4).images, load_omniglot().images[:4])
    with pytest.raises(ValueError, match="classes: got 6; expected at most 5"):
        load_omniglot(classes=6)


def test_reading_tells_how_far_it_is(small_data):
    seen = []
    load_omniglot(progress=lambda *told: seen.append(told))
    assert seen[0] == (0, 3, "reading images_background.zip") and len(seen) == 5


def test_other_images_are_two_classes_of_equal_size(small_data):
    found = load_other_images("mnist")
    assert found.images.shape == (2, 10, 32, 32) and found.names == ("mnist 0", "mnist 1")
    raw = read_idx(small_data / "mnist" / "t10k-images-idx3-ubyte.gz", axes=3)
    assert np.corrcoef(found.images[1].mean((1, 2)), raw[1::4].mean((1, 2)))[0, 1] > 0.99
    with pytest.raises(ValueError, match="name: got 'letters'; expected one of 'fashion-mnist', 'mnist'"):
        load_other_images("letters")


def test_no_class_is_in_two_parts_and_sizes_are_kept():
    names = tuple(f"character {index}" for index in range(1623))
    classes = ImageClasses(np.arange(1623, dtype=np.uint16).reshape(-1, 1, 1, 1), names)
    parts = split_classes(classes)
    assert {name: len(part.names) for name, part in parts.items()} == PART_SIZES
    dealt = [name for part in parts.values() for name in part.names]
    assert len(set(dealt)) == len(dealt) == 1623
    for part in parts.values():
        assert part.names == tuple(names[index] for index in part.images.ravel())
    assert split_classes(classes)["test"].names == parts["test"].names
    assert split_classes(classes, seed=1)["test"].names != parts["test"].names


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sizes": {"training": 4, "test": 2}}, "sizes: got 6 classes; expected at most 5"),
        ({"sizes": {"training": 0}}, "sizes\\['training'\\]: got 0; expected a whole number, 1 or more"),
        ({"seed": -1, "sizes": {"training": 1}}, "seed: got -1; expected a whole number, zero or more"),
    ],
)
def test_bad_splits(arguments, message):
    with pytest.raises(ValueError, match=message):
        split_classes(ImageClasses(np.zeros((5, 2, 4, 4), np.uint8), tuple("abcde")), **arguments)


def test_a_damaged_zip_names_the_file(tmp_path):
    whole = omniglot_zip(tmp_path / "characters.zip", "images", 2).read_bytes()
    for content in (b"", b"no zip at all", whole[: len(whole) // 2]):
        (tmp_path / "cut.zip").write_bytes(content)
        with pytest.raises(ValueError, match="cut.zip, which is damaged .*expected a whole zip file"):
            read_characters(tmp_path / "cut.zip")
    altered = bytearray(whole)
    altered[60:90] = b"?" * 30  # inside the first picture
    (tmp_path / "altered.zip").write_bytes(altered)
    with pytest.raises(ValueError, match="altered.zip, which is damaged"):
        read_characters(tmp_path / "altered.zip")


def test_pictures_that_are_none_and_characters_without_drawings(tmp_path):
    omniglot_zip(tmp_path / "few.zip", "images", 1, drawings=19)
    with pytest.raises(ValueError, match="few.zip.*character01 with 19 drawings; expected characters with 20 drawings"):
        read_characters(tmp_path / "few.zip")
    with zipfile.ZipFile(tmp_path / "empty.zip", "w"):
        pass
    with pytest.raises(ValueError, match="empty.zip, which holds no drawings"):
        read_characters(tmp_path / "empty.zip")
    stream = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).random((105, 105)) < 0.5).save(stream, "PNG")
    for name, content in {"text": b"not a picture", "cut": stream.getvalue()[:600]}.items():
        with zipfile.ZipFile(tmp_path / f"{name}.zip", "w") as archive:
            for drawing in range(20):
                archive.writestr(f"images/Alphabet/character01/{drawing}.png", content)
        with pytest.raises(ValueError, match=f"{name}.zip, which is damaged"):
            read_characters(tmp_path / f"{name}.zip")


def test_a_damaged_idx_file_names_the_file(tmp_path):
    file = idx_gz(tmp_path / "images.gz", np.arange(24).reshape(2, 3, 4))
    np.testing.assert_array_equal(read_idx(file, axes=3), np.arange(24).reshape(2, 3, 4))
    whole = file.read_bytes()
    with pytest.raises(ValueError, match="images.gz, which starts with 00000803; expected a gzipped idx file of bytes"):
        read_idx(file, axes=1)
    file.write_bytes(whole[:-12])
    with pytest.raises(ValueError, match="images.gz, which is damaged"):
        read_idx(file, axes=3)
    file.write_bytes(b"not zipped")
    with pytest.raises(ValueError, match="images.gz, which is damaged .*expected a whole gzipped idx file"):
        read_idx(file, axes=3)
    file.write_bytes(gzip.compress(gzip.decompress(whole)[:-1]))
    with pytest.raises(ValueError, match="images.gz with 23 entries; expected 2×3×4, as its head says"):
        read_idx(file, axes=3)
    file.write_bytes(gzip.compress(b""))
    with pytest.raises(ValueError, match="images.gz, which starts with nothing"):
        read_idx(file, axes=3)


def test_images_and_labels_must_be_of_one_set(small_data):
    idx_gz(small_data / "mnist" / "t10k-labels-idx1-ubyte.gz", np.arange(39) % 2)
    with pytest.raises(ValueError, match="images.*of 40 images; expected 39, the labels of"):
        load_other_images("mnist")
    idx_gz(small_data / "mnist" / "t10k-labels-idx1-ubyte.gz", np.zeros(40))
    with pytest.raises(ValueError, match="names 0 images of a class; expected 2 or more"):
        load_other_images("mnist")


def test_the_real_files(real_data):
    found = load_omniglot(classes=20)
    assert found.images.shape == (20, 20, 32, 32) and found.names[0] == "Alphabet_of_the_Magi/character01"
    # Strokes are thin: most of an image is dark.
    assert 0.02 < found.images.mean() / 255 < 0.15
    assert load_other_images("mnist").images.shape == (2, 980, 32, 32)
    assert load_other_images("fashion-mnist").images.shape == (2, 1000, 32, 32)
    for file, count in (("images_background.zip", 964), ("images_evaluation.zip", 659)):
        with zipfile.ZipFile(real_data / "omniglot" / file) as archive:
            assert len({name.rpartition("/")[0] for name in archive.namelist() if name.endswith(".png")}) == count
