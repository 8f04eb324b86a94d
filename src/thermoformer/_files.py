"""Files read and written: readers with limits, for damaged or hostile files, and writes that are all or nothing."""

from __future__ import annotations

import csv
import io
import math
import os
import stat
import subprocess
import sys
import warnings
import zipfile
from array import array
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from ._validation import InputError, fail, machine_memory

if TYPE_CHECKING:
    import xarray

# A small compressed file can unpack to any size. Arrays up to this size are always read; larger ones only if they
# take at most this many times the size of the file. Eight bytes per number are counted, as results are float64.
FREELY_UNPACKED = 256 * 2**20
LARGEST_RATIO = 32
MOST_ARRAYS = 1000
# A larger text file of numbers takes seconds to parse.
LARGEST_TEXT = 64 * 2**20
NETCDF_ENGINE = "h5netcdf"
# Seconds that the check of a netCDF file may take, besides those for its size.
NETCDF_TIME_LIMIT = 30.0
_BYTES_PER_SECOND = 10 * 2**20

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO and not a regular file",
    stat.S_IFSOCK: "a socket and not a regular file",
    stat.S_IFCHR: "a device and not a regular file",
    stat.S_IFBLK: "a device and not a regular file",
}
_NPZ = "an npz file, as numpy.savez writes it"
_NPY = "an npy file, as numpy.save writes it"


class FileError(OSError, InputError):
    """A file that cannot be read or written."""

    # Those of OSError would take the arguments for a number, a text and a file name.
    __init__ = InputError.__init__
    __str__ = InputError.__str__


class MissingFileError(FileError, FileNotFoundError):
    """A file or folder that is not there."""


def open_file(path: str | os.PathLike[str], *, name: str = "file", expected: str = "a file") -> IO[bytes]:
    """A regular file, opened for reading. Folders, FIFOs and devices are refused, so reading never blocks.

    Arguments:
        name: of the argument, for errors.
        expected: what the file should be, for errors.

    Example:
        >>> open_file("/dev/null")
        Traceback (most recent call last):
        thermoformer._files.FileError: file: got /dev/null, which is a device and not a regular file; expected ...
    """
    try:
        _refuse_irregular(os.stat(path).st_mode, path, name, expected)
        return open(path, "rb")
    except FileNotFoundError as error:
        raise MissingFileError(name, f"{path}, which is not there", expected) from error
    except FileError:
        raise
    except OSError as error:
        raise FileError(name, f"{path}, which cannot be read ({error.strerror})", expected) from error
    except ValueError as error:  # a null character
        raise fail(name, f"{os.fspath(path)!r}, which is not a path ({error})", expected) from error


def read_bytes(path: str | os.PathLike[str], most: int, *, name: str = "file", expected: str = "a file") -> bytes:
    """The content of a regular file; one of more than `most` bytes is refused. Other arguments as in `open_file`."""
    with open_file(path, name=name, expected=expected) as stream:
        content = stream.read(most + 1)
    if len(content) > most:
        raise fail(name, f"{path} of more than {most / 1e6:.0f} MB", "a smaller file")
    return content


def _refuse_irregular(mode: int, path: Any, name: str, expected: str) -> None:
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "not a regular file")
        raise FileError(name, f"{path}, which is {kind}", expected)


def write_safely(path: str | os.PathLike[str], content: bytes | memoryview | str, *, name: str = "out") -> Path:
    """Writes a file whole and returns its path: it is written aside and moved into place when it is complete.

    If the disk is full, the old file stays and nothing else is left behind.

    Arguments:
        path: the file, in a folder that exists; a regular file that is there is replaced.
        content: bytes, or text that is written as UTF-8.
        name: of the argument, for errors.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_safely(folder + "/a.txt", "content").read_text()
        'content'
    """
    expected = "a file in a folder that exists and can be written to, on a disk with space left"
    # A symbolic link stays, and the file that it points to is replaced.
    file = Path(os.path.realpath(path))
    part = file.with_name(f".{file.name}.{os.getpid()}.part")
    try:
        with suppress(FileNotFoundError):
            _refuse_irregular(file.stat().st_mode, path, name, expected)
        try:
            with part.open("wb") as stream:
                stream.write(content.encode() if isinstance(content, str) else content)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(part, file)
        finally:
            with suppress(OSError):
                part.unlink()
    except FileError:
        raise
    except OSError as error:
        kind = MissingFileError if isinstance(error, FileNotFoundError) else FileError
        refused = kind(name, f"{path}, which cannot be written ({error.strerror})", expected)
        refused.errno, refused.strerror = error.errno, error.strerror
        raise refused from error
    return Path(path)


def refuse_foreign(*paths: str | os.PathLike[str], mark: bytes = b"thermoformer") -> None:
    """Refuses to replace files that are not outputs of thermoformer.

    Arguments:
        paths: files that are to be written; they need not exist.
        mark: what every such output holds, in any version. Pages and figures hold the default.
    """
    expected = "another name, or no file there"
    for path in filter(os.path.lexists, paths):
        with open_file(path, name="out", expected=expected) as stream:
            if mark not in stream.read():
                raise fail("out", f"{path}, a file that thermoformer did not write", expected)


def npz_bytes(arrays: Mapping[str, Any]) -> bytes:
    """Arrays by name as the content of a compressed npz file, without pickles."""
    stream = io.BytesIO()
    np.savez_compressed(stream, allow_pickle=False, **{key: np.asarray(array) for key, array in arrays.items()})
    return stream.getvalue()


def read_npz(
    source: str | os.PathLike[str] | bytes,
    *,
    name: str = "file",
    most_bytes: int | None = None,
    most_arrays: int = MOST_ARRAYS,
) -> dict[str, np.ndarray]:
    """The arrays of an npz file by name. Nothing is unpickled, and sizes are checked before anything is unpacked.

    Arguments:
        source: path of the file, or its content.
        name: of the argument, for errors.
        most_bytes: that the arrays may take in memory, at eight bytes or more per number. By default 256 MiB, or 32
            times the size of a larger file, and never more than the machine's memory.
        most_arrays: that the file may hold.

    Example:
        >>> read_npz(npz_bytes({"a": [1, 2]}))
        {'a': array([1, 2])}
    """
    if isinstance(source, bytes):
        return _read_npz(io.BytesIO(source), "the file", name, most_bytes, most_arrays)
    with open_file(source, name=name, expected=_NPZ) as stream:
        return _read_npz(stream, str(source), name, most_bytes, most_arrays)


def _read_npz(stream: IO[bytes], label: str, name: str, most: int | None, most_arrays: int) -> dict[str, np.ndarray]:
    if most is None:
        size = stream.seek(0, os.SEEK_END)
        most = min(max(FREELY_UNPACKED, LARGEST_RATIO * size), machine_memory())
    # Damaged bytes make the parsers of zipfile and NumPy raise almost anything; NumPy warns of odd headers.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            archive = zipfile.ZipFile(stream)
        except Exception as error:
            raise fail(name, f"{label}, which is not an npz file, or a damaged one ({_short(error)})", _NPZ) from error
        members = archive.infolist()
        if len(members) > most_arrays:
            raise fail(name, f"{label} with {len(members)} arrays", f"at most {most_arrays}")
        members = [member for member in members if member.filename.endswith(".npy")]
        claimed = sum(max(_claimed_bytes(archive, member, label, name), member.file_size) for member in members)
        if claimed > most:
            got = f"{label}, whose arrays take {claimed / 2**20:.0f} MiB in memory"
            raise fail(name, got, f"at most {most / 2**20:.0f} MiB; larger arrays only from numpy.savez, uncompressed")
        found = {}
        for member in members:
            try:
                with archive.open(member) as packed:
                    found[member.filename.removesuffix(".npy")] = np.lib.format.read_array(packed, allow_pickle=False)
            except Exception as error:
                raise fail(name, f"{label} with a damaged {_short(member.filename)} ({_short(error)})", _NPZ) from error
    return found


def _claimed_bytes(archive: zipfile.ZipFile, member: zipfile.ZipInfo, label: str, name: str) -> int:
    """Memory for the array that a header describes, at eight bytes or more per number.

    NumPy takes this memory before it reads any number, so a header must not claim more than the file holds.
    """
    place = f"{label} with {_short(member.filename)}"
    # Other methods unpack a whole block, however large, for its first byte.
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise fail(name, f"{place} in another compression", _NPZ)
    try:
        stream = archive.open(member)
    except Exception as error:
        raise fail(name, f"{place}, which is not an array, or a damaged one ({_short(error)})", _NPZ) from error
    with stream:
        return _array_bytes(stream, member.file_size, place, name, _NPZ)


def _array_bytes(stream: IO[bytes], size: int, place: str, name: str, expected: str) -> int:
    """Memory for the array in a stream of `size` bytes, by its header."""
    try:
        version = np.lib.format.read_magic(stream)
        one = version == (1, 0)
        read = np.lib.format.read_array_header_1_0 if one else np.lib.format.read_array_header_2_0
        shape, _, kind = read(stream)
        content = size - stream.tell()
        numbers = math.prod(shape)
        whole = all(type(length) is int and length >= 0 for length in shape)
    except Exception as error:
        raise fail(name, f"{place}, which is not an array, or a damaged one ({_short(error)})", expected) from error
    if kind.hasobject:
        raise fail(name, f"{place}, an array of Python objects", "arrays of numbers only")
    if not whole or numbers * kind.itemsize != content:
        raise fail(name, f"{place}, which does not hold its shape {shape}", "whole arrays")
    return numbers * max(8, kind.itemsize)


def read_npy(path: str | os.PathLike[str], *, name: str = "file") -> np.ndarray:
    """The array of an npy file. Nothing is unpickled, and its size is checked before it is read.

    Arguments:
        path: of the file.
        name: of the argument, for errors.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.save(f"{folder}/a.npy", [1, 2])
        ...     read_npy(f"{folder}/a.npy")
        array([1, 2])
    """
    with open_file(path, name=name, expected=_NPY) as stream, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy warns of odd headers
        size = stream.seek(0, os.SEEK_END)
        stream.seek(0)
        if (claimed := _array_bytes(stream, size, str(path), name, _NPY)) > machine_memory():
            got = f"{path}, whose array takes {claimed / 2**20:.0f} MiB in memory"
            raise fail(name, got, f"at most {machine_memory() / 2**20:.0f} MiB")
        stream.seek(0)
        try:
            return np.lib.format.read_array(stream, allow_pickle=False)
        except Exception as error:
            raise fail(name, f"{path}, which is not an npy file, or a damaged one ({_short(error)})", _NPY) from error


def csv_table(
    content: bytes, *, name: str = "file", most_cells: int | None = None
) -> tuple[list[str] | None, np.ndarray]:
    """The header of a csv file, if its first row is not numbers, and its numbers [row, column].

    Arguments:
        content: of the file, in UTF-8.
        name: of the argument, for errors.
        most_cells: that the file may hold; default: any number.

    Example:
        >>> header, table = csv_table(b"label,a\\n1,0.5\\n-1,2\\n")
        >>> header, table.tolist()
        (['label', 'a'], [[1.0, 0.5], [-1.0, 2.0]])
    """
    try:
        return number_table(csv.reader(io.StringIO(content.decode("utf-8-sig")), strict=True), name, most_cells)
    except UnicodeDecodeError as error:
        raise fail(name, f"bytes that are no text (at {error.start})", "a csv file in UTF-8") from error
    except csv.Error as error:
        raise fail(name, f"a row that is not csv ({error})", "values separated by commas") from error


def number_table(
    rows: Iterable[list[str]], name: str = "file", most_cells: int | None = None
) -> tuple[list[str] | None, np.ndarray]:
    """The same for rows of cells; empty rows are passed over.

    Example:
        >>> number_table([["1", "-1"], [], ["-1", "1"]])[1].tolist()
        [[1.0, -1.0], [-1.0, 1.0]]
    """
    header: list[str] | None = None
    width, numbers = 0, array("d")  # a list of Python's own numbers would take several times the memory
    for cells in rows:
        if not any(cell.strip() for cell in cells):
            continue
        if not width:
            width = len(cells)
            if any(_number(cell) is None for cell in cells):
                header = [cell.strip() for cell in cells]
                if len(set(header)) != width:
                    raise fail(name, "a name twice in its first row", "each column named once")
                continue
        row = len(numbers) // width + 1
        if len(cells) != width:
            raise fail(name, f"{len(cells)} values in row {row}", f"{width}, as in the first row")
        for column, cell in enumerate(cells, 1):
            number = _number(cell)
            if number is None or not math.isfinite(number):
                got = f"{cell.strip()[:20]!r} in row {row}, column {column}"
                raise fail(name, got, "a finite number")
            numbers.append(number)
        if most_cells is not None and len(numbers) > most_cells:
            raise fail(name, f"more than {most_cells} values", "fewer")
    if not width:
        raise fail(name, "no rows", "at least one")
    if not numbers:
        raise fail(name, f"0 rows of {width}", "at least one row of numbers")
    return header, np.frombuffer(numbers).reshape(-1, width)


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def _short(text: object) -> str:
    """A text that may come from a damaged file, short and without control characters."""
    shown = ascii(str(text))[1:-1]
    return shown if len(shown) <= 100 else shown[:97] + "..."


def write_netcdf(dataset: xarray.Dataset, path: str | os.PathLike[str], *, encoding: Any = None) -> Path:
    """Writes a dataset as netCDF, whole or not at all: in memory first, since HDF5 crashes on a full disk."""
    return write_safely(path, dataset.to_netcdf(engine=NETCDF_ENGINE, encoding=encoding))


def read_netcdf(path: str | os.PathLike[str], *, name: str = "file") -> xarray.Dataset:
    """The dataset of a netCDF file.

    Damaged files can make HDF5 crash or run without end, so another process reads the file first, within a time limit.
    """
    import xarray

    expected = "a whole netCDF file"
    open_file(path, name=name, expected=expected).close()
    limit = NETCDF_TIME_LIMIT + os.stat(path).st_size / _BYTES_PER_SECOND
    try:
        checked = subprocess.run(
            [sys.executable, "-I", "-c", _READ_ALL, os.fspath(path)], capture_output=True, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise fail(name, f"{path}, which could not be read within {limit:.0f} s", expected) from error
    if checked.returncode:
        raise fail(name, f"{path}, which is not a netCDF file, or a damaged one", expected)
    try:
        return xarray.load_dataset(path, engine=NETCDF_ENGINE)
    except Exception as error:
        raise fail(name, f"{path}, which is not a netCDF file, or a damaged one ({_short(error)})", expected) from error


# h5py alone, which starts in a fraction of the time of xarray. All that xarray reads passes through it.
_READ_ALL = """
import sys, h5py
def read(name, item):
    dict(item.attrs)
    if isinstance(item, h5py.Dataset):
        item[()]
with h5py.File(sys.argv[1], "r") as file:
    dict(file.attrs)
    file.visititems(read)
"""
