"""Files that are damaged, hostile or too large, and disks that are full: one clear error each, and no half files."""

from __future__ import annotations

import io
import os
import pickle
import subprocess
import sys
import zipfile

import numpy as np
import pytest
import xarray as xr

from thermoformer import InputError, _files
from thermoformer._files import (
    FileError,
    MissingFileError,
    npz_bytes,
    open_file,
    read_netcdf,
    read_npz,
    write_netcdf,
    write_safely,
)
from thermoformer.sweeps import StoreError


def test_arrays_come_back(tmp_path):
    arrays = {"a": np.arange(6.0).reshape(2, 3), "b": np.asfortranarray(np.ones((3, 2), bool)), "c": np.array("x")}
    write_safely(tmp_path / "a.npz", npz_bytes(arrays))
    for source in (tmp_path / "a.npz", str(tmp_path / "a.npz"), (tmp_path / "a.npz").read_bytes()):
        found = read_npz(source)
        assert found.keys() == arrays.keys()
        for name, array in arrays.items():
            np.testing.assert_array_equal(found[name], array)
            assert found[name].dtype == array.dtype


def claiming(shape: str, content: bytes = bytes(8)) -> bytes:
    """An npz file whose array claims a shape of float64."""
    header = (f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}").ljust(117) + "\n"
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        size = len(header).to_bytes(2, "little")
        archive.writestr("y.npy", b"\x93NUMPY\x01\x00" + size + header.encode() + content)
    return stream.getvalue()


@pytest.mark.parametrize("shape", ["(10000000000,)", "(2,)", "(0,)", "(-1,)", "(True,)", "(0, 10" + "0" * 30 + ")"])
def test_a_header_that_claims_another_size_is_refused(shape):
    assert read_npz(claiming("(1,)"))["y"] == 0
    with pytest.raises(ValueError, match=r"file: got the file with y\.npy, which does not hold its shape"):
        read_npz(claiming(shape))


# The peak of the process itself: what is unpacked and then refused would count.
_PEAK = """
import resource, sys
from thermoformer._files import read_npz
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    read_npz(sys.argv[1])
except ValueError as error:
    print(error)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_a_small_file_does_not_unpack_to_gigabytes(tmp_path):
    np.savez_compressed(tmp_path / "bomb.npz", xi=np.zeros((8, 8, 2**20), np.int8))  # 512 MiB as float64
    assert (tmp_path / "bomb.npz").stat().st_size < 2**18
    run = [sys.executable, "-c", _PEAK, tmp_path / "bomb.npz"]
    message, peak = subprocess.run(run, capture_output=True, text=True, check=True).stdout.splitlines()
    assert "whose arrays take 512 MiB in memory; expected at most 256 MiB" in message
    assert int(peak) < 20_000  # KiB


def test_large_arrays_are_read_if_the_file_is_large_or_the_machine_allows(tmp_path, monkeypatch):
    monkeypatch.setattr(_files, "FREELY_UNPACKED", 1000)
    np.savez(tmp_path / "plain.npz", a=np.zeros(10_000, np.int8))
    np.savez_compressed(tmp_path / "small.npz", a=np.zeros(10_000, np.int8))
    assert read_npz(tmp_path / "plain.npz")["a"].size == 10_000
    with pytest.raises(ValueError, match=r"small\.npz, whose arrays take .*numpy\.savez, uncompressed"):
        read_npz(tmp_path / "small.npz")
    monkeypatch.setattr(_files, "machine_memory", lambda: 10_000)
    with pytest.raises(ValueError, match=r"plain\.npz, whose arrays take"):
        read_npz(tmp_path / "plain.npz")


def test_too_many_arrays_are_refused():
    with pytest.raises(ValueError, match="file: got the file with 3 arrays; expected at most 2"):
        read_npz(npz_bytes({name: 1 for name in "abc"}), most_arrays=2)


def test_names_from_a_file_are_shown_short_and_without_control_characters():
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("\x1b[2J" + "a" * 200 + ".npy", b"no array")
    with pytest.raises(ValueError) as caught:
        read_npz(stream.getvalue())
    assert r"\x1b[2J" in str(caught.value) and "\x1b" not in str(caught.value) and len(str(caught.value)) < 400


def test_what_is_no_regular_file_is_named_and_never_waited_for(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for path, message in (
        (tmp_path / "fifo", "which is a FIFO and not a regular file; expected a file"),
        (tmp_path, "which is a folder; expected a file"),
        (tmp_path / "none", "which is not there; expected a file"),
        ("/dev/zero", "which is a device and not a regular file; expected a file"),
        (tmp_path / ("x" * 300), r"which cannot be read \(File name too long\); expected a file"),
    ):
        with pytest.raises(OSError, match=message):
            open_file(path)
    for path in (tmp_path / "fifo", tmp_path, "/dev/null"):
        with pytest.raises(OSError, match="which is a .*; expected a file in a folder"):
            write_safely(path, b"")


@pytest.mark.parametrize("kind", [InputError, FileError, MissingFileError, StoreError])
def test_errors_of_input_are_one_type_and_travel(kind):
    """Also to another process: their fields are their arguments."""
    error = pickle.loads(pickle.dumps(kind("width", [1], "one number")))
    assert type(error) is kind and isinstance(error, InputError) and isinstance(error, ValueError)
    assert (error.argument, error.got, error.expected) == ("width", "[1]", "one number")
    assert str(error) == "width: got [1]; expected one number"
    assert isinstance(error, OSError) == issubclass(kind, FileError)


def test_an_error_of_writing_says_what_the_system_said(tmp_path):
    with pytest.raises(MissingFileError) as caught:
        write_safely(tmp_path / "none" / "file", b"")
    assert (caught.value.argument, caught.value.strerror) == ("out", "No such file or directory")


def test_a_link_is_written_through(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link.txt").symlink_to(tmp_path / "folder" / "file.txt")
    write_safely(tmp_path / "link.txt", "new")
    assert (tmp_path / "link.txt").is_symlink() and (tmp_path / "folder" / "file.txt").read_text() == "new"


# A process may write files of 100 kB at most: the system then answers as it does on a full disk.
_FULL = """
import resource, signal, sys
import numpy as np, xarray as xr
from thermoformer._files import npz_bytes, write_netcdf, write_safely
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
values = np.random.default_rng(0).normal(size=100_000)
try:
    if sys.argv[1].endswith(".nc"):
        write_netcdf(xr.Dataset({"a": ("x", values)}), sys.argv[1])
    else:
        write_safely(sys.argv[1], npz_bytes({"a": values}))
except OSError as error:
    print(error)
"""


@pytest.mark.parametrize("name", ["a.nc", "a.npz"])
def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path, name):
    (tmp_path / name).write_bytes(b"old")
    run = [sys.executable, "-c", _FULL, tmp_path / name]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"out: got {tmp_path / name}, which cannot be written (File too large); expected")
    assert [file.name for file in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_bytes() == b"old"


def test_netcdf_comes_back_and_damage_is_refused(tmp_path):
    dataset = xr.Dataset({"a": ("x", np.arange(50.0)), "name": ("x", [str(n) for n in range(50)])}, attrs={"b": 1})
    file = write_netcdf(dataset, tmp_path / "a.nc", encoding={"a": {"zlib": True}})
    xr.testing.assert_identical(read_netcdf(file), dataset)
    content = file.read_bytes()
    for damaged in (content[: len(content) // 2], b"hello", b"", content[:600] + bytes(600) + content[1200:]):
        file.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"out: got .*a\.nc, which is not a netCDF file, or a damaged one"):
            read_netcdf(file, name="out")


def test_a_netcdf_file_that_hangs_or_crashes_the_library_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(_files, "NETCDF_TIME_LIMIT", 2.0)
    dataset = xr.Dataset({name: (("seed", "x"), np.ones((5, 10))) for name in "abc"})
    file = write_netcdf(dataset.assign_coords(seed=range(5)), tmp_path / "a.nc")
    # The size of the first object in the global heap: HDF5 runs without end if it is wrong.
    content = bytearray(file.read_bytes())
    content[content.index(b"GCOL") + 24] = 234
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.nc, which"):
        read_netcdf(file)
    monkeypatch.setattr(_files, "_READ_ALL", "import os; os.abort()")
    write_netcdf(dataset, file)
    with pytest.raises(ValueError, match=r"a\.nc, which is not a netCDF file, or a damaged one"):
        read_netcdf(file)


def test_a_path_with_a_null_character_is_refused_in_words(tmp_path):
    with pytest.raises(ValueError, match=r"file: got 'a\\x00b', which is not a path \(embedded null byte\); expected"):
        open_file("a\0b")
