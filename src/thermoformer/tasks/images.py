"""Images to compare: handwritten characters (Omniglot), digits (MNIST) and clothes (Fashion-MNIST), 32 × 32.

Bright on dark, one channel. Images are resized by Pillow's bilinear filter, whose triangle widens with the reduction,
so that no pixel of the original is skipped.
"""

from __future__ import annotations

import gzip
import io
import math
import struct
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from .._files import open_file
from .._validation import fail, nonnegative_integer, one_of, positive_integer
from .files import damaged, data_file

SIZE = 32
DRAWINGS = 20
# Classes of the parts of Omniglot, in the sizes of Vinyals et al. (2016).
PART_SIZES = {"training": 1028, "validation": 172, "test": 423}
OTHER_IMAGES = ("fashion-mnist", "mnist")

# Far above those of the data sets; larger ones are damaged, or not what they should be.
LARGEST_DRAWING, LARGEST_SIDE, LARGEST_IDX = 2**20, 4096, 2**28

_ZIPS = ("omniglot/images_background.zip", "omniglot/images_evaluation.zip")


class ImageClasses(NamedTuple):
    """Images by class.

    Fields:
        images: uint8 [class, drawing, row, column], bright on dark.
        names: one per class.
    """

    images: np.ndarray
    names: tuple[str, ...]

    def select(self, classes: Sequence[int] | np.ndarray) -> ImageClasses:
        """The given classes, in the given order."""
        return ImageClasses(self.images[np.asarray(classes)], tuple(self.names[int(index)] for index in classes))


def load_omniglot(
    *, classes: int | None = None, progress: Callable[[int, int, str], None] | None = None
) -> ImageClasses:
    """All 1623 characters of Omniglot with their 20 drawings, in the order of their names.

    Arguments:
        classes: how many; the first in the files. By default all.
        progress: called as progress(characters read, characters in all, message).
    """
    wanted = None if classes is None else positive_integer("classes", classes)
    images, names = [], []
    for file in _ZIPS:
        if wanted is not None and len(names) >= wanted:
            break
        left = None if wanted is None else wanted - len(names)
        found = read_characters(data_file(file), classes=left, progress=progress)
        images.append(found.images)
        names += found.names
    if wanted is not None and len(names) < wanted:
        raise fail("classes", wanted, f"at most {len(names)}, the characters there are")
    return ImageClasses(np.concatenate(images), tuple(names))


def read_characters(
    file: Path, *, classes: int | None = None, progress: Callable[[int, int, str], None] | None = None
) -> ImageClasses:
    """The characters of one zip file in the form of Omniglot: part/alphabet/character/drawing.png."""
    kind = "zip file of drawings"
    with open_file(file, expected=f"a {kind}") as stream:
        try:
            archive = zipfile.ZipFile(stream)
        except Exception as error:  # damaged archives raise errors of many kinds
            raise damaged(file, error, kind) from error
        drawings: dict[str, list[str]] = {}
        for name in sorted(name for name in archive.namelist() if name.endswith(".png")):
            drawings.setdefault(name.rpartition("/")[0], []).append(name)
        wrong = [name for name, found in drawings.items() if len(found) != DRAWINGS]
        if wrong or not drawings:
            what = f"{wrong[0]} with {len(drawings[wrong[0]])} drawings" if wrong else "no drawings"
            raise fail("file", f"{file}, which holds {what}", f"characters with {DRAWINGS} drawings each")
        chosen = list(drawings.items())[:classes]
        images = np.empty((len(chosen), DRAWINGS, SIZE, SIZE), np.uint8)
        for index, (_, members) in enumerate(chosen):
            if progress is not None:
                progress(index, len(chosen), f"reading {file.name}")
            for drawing, member in enumerate(members):
                try:
                    images[index, drawing] = _drawing(archive, member)
                except Exception as error:
                    raise damaged(file, error, kind) from error
    return ImageClasses(images, tuple(name.partition("/")[2] for name, _ in chosen))


def split_classes(
    classes: ImageClasses, *, seed: int = 0, sizes: dict[str, int] | None = None
) -> dict[str, ImageClasses]:
    """Classes dealt at random to parts that share none: training, validation and test.

    Not the list of Vinyals et al., but parts of the same sizes: characters of one alphabet may lie in several parts.

    Arguments:
        seed: of the deal; equal seeds give equal parts.
        sizes: classes of each part; by default 1028, 172 and 423.

    Example:
        >>> import numpy as np
        >>> four = ImageClasses(np.zeros((4, 20, 32, 32), np.uint8), ("a", "b", "c", "d"))
        >>> parts = split_classes(four, sizes={"training": 2, "validation": 1, "test": 1})
        >>> sorted(name for part in parts.values() for name in part.names)
        ['a', 'b', 'c', 'd']
    """
    sizes = PART_SIZES if sizes is None else sizes
    counts = [positive_integer(f"sizes[{name!r}]", size) for name, size in sizes.items()]
    if sum(counts) > len(classes.names):
        raise fail("sizes", f"{sum(counts)} classes", f"at most {len(classes.names)}, the classes given")
    order = np.random.default_rng(nonnegative_integer("seed", seed)).permutation(len(classes.names))
    ends = np.cumsum(counts)
    return {name: classes.select(order[end - size : end]) for name, size, end in zip(sizes, counts, ends, strict=True)}


def load_other_images(name: str) -> ImageClasses:
    """Classes 0 and 1 of the test images of "fashion-mnist" or "mnist", as many of each."""
    one_of("name", name, OTHER_IMAGES)
    image_file, label_file = (data_file(f"{name}/t10k-{kind}-ubyte.gz") for kind in ("images-idx3", "labels-idx1"))
    images, labels = read_idx(image_file, axes=3), read_idx(label_file, axes=1)
    if len(images) != len(labels):
        raise fail("file", f"{image_file} of {len(images)} images", f"{len(labels)}, the labels of {label_file}")
    chosen = [images[labels == label] for label in (0, 1)]
    count = min(len(part) for part in chosen)
    if count < 2:
        raise fail("file", f"{label_file}, which names {count} images of a class", "2 or more of classes 0 and 1")
    resized = [[_resized(Image.fromarray(image)) for image in part[:count]] for part in chosen]
    return ImageClasses(np.array(resized), (f"{name} 0", f"{name} 1"))


def read_idx(file: Path, *, axes: int) -> np.ndarray:
    """The bytes in a gzipped idx file, the format of MNIST: a head with the sizes, then the entries."""
    kind = f"gzipped idx file of bytes with {axes} axes"
    try:
        with gzip.open(file) as stream:
            content = stream.read(LARGEST_IDX + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise damaged(file, error, kind) from error
    if len(content) > LARGEST_IDX:
        raise fail("file", f"{file} of more than {LARGEST_IDX / 1e6:.0f} MB unpacked", f"a {kind}")
    head = 4 + 4 * axes
    # Two zeros, 8 for unsigned bytes, and the number of axes.
    if len(content) < head or content[:4] != bytes([0, 0, 8, axes]):
        raise fail("file", f"{file}, which starts with {content[:4].hex() or 'nothing'}", f"a {kind}")
    shape = struct.unpack(f">{axes}I", content[4:head])
    if len(content) - head != math.prod(shape):
        raise fail(
            "file", f"{file} with {len(content) - head} entries", f"{'×'.join(map(str, shape))}, as its head says"
        )
    return np.frombuffer(content, np.uint8, offset=head).reshape(shape)


def _drawing(archive: zipfile.ZipFile, member: str) -> np.ndarray:
    """One drawing of a zip file, bright ink on a dark ground."""
    if (size := archive.getinfo(member).file_size) > LARGEST_DRAWING:
        raise ValueError(f"{member} of {size} bytes")
    with Image.open(io.BytesIO(archive.read(member))) as picture:
        if max(picture.size) > LARGEST_SIDE:
            raise ValueError(f"{member} of {picture.size[0]} by {picture.size[1]} pixels")
        # Ink is black on white in the files.
        return 255 - _resized(picture.convert("L"))


def _resized(picture: Image.Image) -> np.ndarray:
    return np.asarray(picture.resize((SIZE, SIZE), Image.Resampling.BILINEAR))
