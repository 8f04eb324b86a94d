"""Small data files in the forms of Omniglot and MNIST, made on the spot."""

from __future__ import annotations

import gzip
import io
import struct
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image


def omniglot_zip(file: Path, part: str, characters: int, *, drawings: int = 20, seed: int = 0) -> Path:
    """A zip file with black ink on white, one bit per pixel, 105 × 105."""
    random = np.random.default_rng(seed)
    file.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(file, "w") as archive:
        for character in range(1, characters + 1):
            shape = random.random((15, 15)) < 0.3
            for drawing in range(1, drawings + 1):
                ink = np.roll(np.kron(shape, np.ones((7, 7), bool)), random.integers(-3, 4, 2), axis=(0, 1))
                stream = io.BytesIO()
                Image.fromarray(~ink).save(stream, "PNG")
                name = f"{part}/Alphabet/character{character:02d}/{character:04d}_{drawing:02d}.png"
                archive.writestr(name, stream.getvalue())
    return file


def idx_gz(file: Path, array: np.ndarray) -> Path:
    """A gzipped idx file of bytes."""
    file.parent.mkdir(parents=True, exist_ok=True)
    head = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    file.write_bytes(gzip.compress(head + array.astype(np.uint8).tobytes()))
    return file


def data_folder(folder: Path, *, characters: tuple[int, int] = (60, 50)) -> Path:
    """A folder as THERMOFORMER_DATA may name it, with every file that one-shot training reads."""
    for number, (part, count) in enumerate(zip(("background", "evaluation"), characters, strict=True)):
        omniglot_zip(folder / "omniglot" / f"images_{part}.zip", f"images_{part}", count, seed=number)
    random = np.random.default_rng(1)
    for name in ("fashion-mnist", "mnist"):
        labels = np.arange(40) % 4
        shapes = random.random((4, 28, 28)) < 0.2
        noise = random.random((40, 28, 28)) < 0.05
        idx_gz(folder / name / "t10k-images-idx3-ubyte.gz", 255 * (shapes[labels] ^ noise))
        idx_gz(folder / name / "t10k-labels-idx1-ubyte.gz", labels)
    return folder
