"""Damaged folders of sweeps: a file that is lost, cut off or changed gives the right values or a clear error."""

from __future__ import annotations

import json
import os
import shutil
import warnings
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import sweep_functions as functions
import xarray as xr
from typer.testing import CliRunner

from thermoformer.cli import app
from thermoformer.sweeps import StoreError, Sweep, SweepStore

GRID = {"a": [1.0, 2.0], "b": [0, 1, 2]}
RESULTS = ("product", "count", "word", "spectrum")


def sweep_in(folder: Path) -> Sweep:
    return Sweep(functions.varied, GRID, folder, batch=2)


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("damage") / "finished"
    sweep_in(folder).run()
    return folder


def copy_of(folder: Path, target: Path) -> Path:
    """The same files under other names: damaging one replaces it."""
    shutil.rmtree(target, ignore_errors=True)
    return Path(shutil.copytree(folder, target, copy_function=os.link))


def flip(content: bytes, place: float, bit: int) -> bytes:
    at = min(int(place * len(content)), len(content) - 1)
    return content[:at] + bytes([content[at] ^ (1 << bit)]) + content[at + 1 :]


DAMAGES = {
    "delete": lambda content: None,
    "empty": lambda content: b"",
    "half": lambda content: content[: len(content) // 2],
    "flip first": lambda content: flip(content, 0.0, 0),
    "flip middle": lambda content: flip(content, 0.5, 1),
    "flip last": lambda content: flip(content, 1.0, 6),
}


def damage(file: Path, kind: str) -> None:
    content = DAMAGES[kind](file.read_bytes())
    file.unlink()
    if content is not None:
        file.write_bytes(content)


def same(found: xr.Dataset, expected: xr.Dataset, *, all_points: bool) -> bool:
    """Whether every value that is called done, every coordinate and every attribute is as it was computed."""
    done = found.status.values == 1
    if (all_points and not np.array_equal(found.status, expected.status)) or set(found.variables) != {
        *expected.variables
    }:
        return False
    axes = all(
        np.array_equal(found[name].values, expected[name].values) and found[name].dtype == expected[name].dtype
        for name in expected.coords
    )
    values = all(
        found[name].dims == expected[name].dims
        and found[name].attrs == expected[name].attrs
        and np.array_equal(found[name].values[done], expected[name].values[done])
        for name in RESULTS
    )
    return axes and values and found.attrs["title"] == "varied"


def read(folder: Path, expected: xr.Dataset, file: Path) -> str:
    """How reading ends: right values, a clear error, or something that must not be."""
    try:
        store = SweepStore(folder)
        found = store.dataset().load()
        errors = store.errors()
    except StoreError as error:
        clear = str(file) in str(error) and "expected" in str(error)
        return "refused" if clear else f"unclear: {error}"
    except Exception as error:
        return f"traceback: {type(error).__name__}: {error}"
    right = same(found, expected, all_points=False) and all("no such luck" in text for text in errors.values())
    return "right" if right else "wrong in silence"


def test_every_damage_of_every_file_is_found_or_harmless(finished, tmp_path):
    expected = SweepStore(finished).dataset().load()
    files = [
        path.relative_to(finished) for path in sorted(finished.rglob("*")) if path.is_file() and path.name != ".lock"
    ]
    assert len(files) > 30
    outcomes, bad = Counter(), []
    for name in files:
        for kind in DAMAGES:
            folder = copy_of(finished, tmp_path / "s")
            damage(folder / name, kind)
            outcome = read(folder, expected, folder / name)
            outcomes[outcome.partition(":")[0]] += 1
            if outcome not in ("right", "refused"):
                bad.append((str(name), kind, outcome))
            elif name.name == "sweep.json" or kind not in ("delete", "flip middle"):
                continue
            else:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    again = sweep_in(folder).run().load()
                if not same(again, expected, all_points=True):
                    bad.append((str(name), kind, "not repaired"))
    assert not bad, (outcomes, bad)
    assert outcomes.keys() == {"right", "refused"}


def run_command(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["sweep", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, " ".join(result.output.split())


def test_the_commands_name_damaged_points_and_repair_them(finished, tmp_path):
    folder = copy_of(finished, tmp_path / "s")
    expected = SweepStore(finished).dataset().load()
    lazy = SweepStore(folder).dataset()
    shutil.rmtree(folder / "data.zarr" / "product" / "c" / "0")  # tasks 0 and 1: all points with a = 1
    damage(folder / "data.zarr" / "count" / "c" / "1" / "0", "empty")
    with pytest.raises(StoreError, match="product/c/0/[01], which is damaged .it is missing"):
        lazy.product.load()
    assert Sweep.from_store(folder, functions.varied).status().damaged == 5
    report = json.loads(CliRunner().invoke(app, ["sweep", "status", str(folder), "--json"]).output)
    assert (report["done"], report["failed"], report["damaged"], report["left"]) == (1, 0, 5, 5)
    assert [one["point"] for one in report["damage"]] == [[1.0, 0], [1.0, 1], [1.0, 2], [2.0, 0], [2.0, 1]]
    assert "product/c/0/0" in report["damage"][0]["error"] and "count/c/1/0" in report["damage"][-1]["error"]
    code, text = run_command("status", str(folder))
    assert code == 0 and "5; the next run computes them again" in text
    code, text = run_command("show", str(folder), "--out", str(tmp_path / "picture"))
    assert code == 2 and "which is damaged" in text and "run or resume the sweep" in text
    with pytest.warns(UserWarning, match="5 points are damaged and will be computed again; the first: .*product/c/0/0"):
        code, text = run_command("resume", str(folder), "--function", "sweep_functions:varied")
    assert code == 0 and "5 (83.3 %)" in text and "damaged" not in text
    assert same(SweepStore(folder).dataset().load(), expected, all_points=True)


def test_results_are_not_overwritten_when_the_description_is_lost(finished, tmp_path):
    folder = copy_of(finished, tmp_path / "s")
    shutil.rmtree(folder / "errors")
    (folder / "sweep.json").unlink()
    with pytest.raises(StoreError, match="which holds data.zarr; expected an empty folder or a sweep"):
        sweep_in(folder).run()
    assert (folder / "data.zarr" / "product" / "c" / "0" / "0").exists()


def test_all_results_are_computed_again_when_they_are_lost(finished, tmp_path):
    folder = copy_of(finished, tmp_path / "s")
    shutil.rmtree(folder / "data.zarr")
    with pytest.raises(StoreError, match="data.zarr, which is damaged .it is missing.; .* run or resume the sweep"):
        SweepStore(folder).dataset()
    again = sweep_in(folder).run().load()
    assert same(again, SweepStore(finished).dataset().load(), all_points=True)


def test_zarr_verifies_the_checksums_too(finished, tmp_path):
    """A reader that knows nothing of sweeps reads the group, and notices a changed chunk."""
    folder = copy_of(finished, tmp_path / "s")
    expected = SweepStore(finished).dataset().load()
    found = xr.open_zarr(folder / "data.zarr", consolidated=False, chunks=None, decode_cf=False)
    assert all(np.array_equal(found[name].values[:1], expected[name].values[:1]) for name in (*RESULTS, "a", "line"))
    damage(folder / "data.zarr" / "product" / "c" / "0" / "0", "flip first")
    with pytest.raises(ValueError, match="checksum do not match"):
        xr.open_zarr(folder / "data.zarr", consolidated=False, chunks=None).product.load()


@pytest.fixture
def first_format(tmp_path) -> Path:
    """A folder of `sweep_in` with the points of b = 0 and 1, written by the version before there were checksums."""
    with zipfile.ZipFile(Path(__file__).parent / "format_1.zip") as archive:
        archive.extractall(tmp_path / "old")
    return tmp_path / "old"


def test_folders_of_the_first_format_are_continued(first_format, finished):
    expected = SweepStore(finished).dataset().load()
    half = SweepStore(first_format).dataset().load()
    assert half.status.values.tolist() == [[1, 1, 0], [1, 2, 0]] and same(half, expected, all_points=False)
    sweep = sweep_in(first_format)
    assert not {"bound", "grid"} & set(sweep.changes())
    (first_format / "data.zarr" / "product" / "c" / "1" / "0").unlink()
    with pytest.raises(StoreError, match="product/c/1/0, which is damaged .it is missing"):
        sweep.dataset().load()
    with pytest.warns(UserWarning, match="2 points are damaged"):
        found = sweep.run(accept_changes=True)  # of versions
    assert same(found.load(), expected, all_points=True) and list(sweep.errors()) == [(2.0, 1)]
    assert sweep.changes() == []


def test_folders_of_an_earlier_version_are_continued(tmp_path, finished):
    """Of format 2, with the points of b = 0 and 1; axes may grow too."""
    with zipfile.ZipFile(Path(__file__).parent / "format_2.zip") as archive:
        archive.extractall(tmp_path / "old")
    expected = SweepStore(finished).dataset().load()
    half = SweepStore(tmp_path / "old").dataset().load()
    assert half.status.values.tolist() == [[1, 1, 0], [1, 2, 0]] and same(half, expected, all_points=False)
    sweep = sweep_in(tmp_path / "old")
    assert not {"bound", "grid", "function", "source"} & set(sweep.changes())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = sweep.run(accept_changes=True).load()
        assert same(found, expected, all_points=True) and list(sweep.errors()) == [(2.0, 1)]
        longer = Sweep(functions.varied, GRID | {"b": [0, 1, 2, 5]}, tmp_path / "old", batch=2).run().load()
    assert same(longer.isel(b=slice(3)), expected, all_points=True) and longer["count"].values[:, 3].tolist() == [6, 6]


def test_damaged_metadata_of_the_first_format(first_format, tmp_path):
    """Without checksums, what the files say must at least fit together."""
    expected = SweepStore(first_format).dataset().load()
    outcomes = Counter()
    generator = np.random.default_rng(0)
    files = ["sweep.json", *(f"data.zarr/{name}/zarr.json" for name in ("product", "status", "a", "line"))]
    for number in range(60):
        folder = copy_of(first_format, tmp_path / "s")
        file = folder / files[number % len(files)]
        content = flip(file.read_bytes(), generator.random(), int(generator.integers(8)))
        file.unlink()
        file.write_bytes(content)
        outcome = read(folder, expected, file)
        assert outcome.partition(":")[0] in ("right", "refused", "unclear"), (file, outcome)
        outcomes[outcome.partition(":")[0]] += 1
    assert outcomes["refused"] > 30


def test_files_of_other_chunks_and_tasks_are_refused(finished, tmp_path):
    """Files that are whole, and in another's place."""
    expected = SweepStore(finished).dataset().load()
    for name, other in (
        ("data.zarr/product/c/0/0", "data.zarr/product/c/1/0"),
        ("data.zarr/product/c/0/0", "data.zarr/status/c/0/0"),
        ("data.zarr/word/c/0/0", "data.zarr/word/c/0/1"),
        ("data.zarr/status/c/0/0", "data.zarr/status/c/1/0"),
        ("errors/1-0.json", "sweep.json"),
    ):
        folder = copy_of(finished, tmp_path / "s")
        (folder / name).unlink()
        os.link(folder / other, folder / name)
        assert read(folder, expected, folder / name) == "refused"
