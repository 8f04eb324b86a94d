"""Results on disk: whole or not at all, and only for the config that made them."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import xarray as xr

from thermoformer._files import write_netcdf
from thermoformer.experiments import store


@dataclass(frozen=True)
class Config:
    width: int = 10
    seeds: int = 2


@pytest.fixture
def dataset() -> xr.Dataset:
    return xr.Dataset({"accuracy": ("seed", [0.9, 0.8])}, {"seed": [0, 1]})


def test_fingerprint_sees_every_field_but_those_left_out():
    assert store.fingerprint(Config()) == store.fingerprint(Config())
    assert store.fingerprint(Config()) != store.fingerprint(Config(seeds=3))
    assert store.fingerprint(Config(), apart_from=("seeds",)) == store.fingerprint(
        Config(seeds=3), apart_from=("seeds",)
    )


def test_what_is_saved_is_loaded(tmp_path, dataset):
    file = tmp_path / "new" / "run.nc"
    store.save(dataset, file, "abc")
    xr.testing.assert_equal(store.load(file, "abc"), dataset)
    assert [other.name for other in file.parent.iterdir()] == ["run.nc"]


def test_no_file_is_nothing_finished(tmp_path):
    assert store.load(tmp_path / "run.nc", "abc") is None


def test_a_failed_save_leaves_the_old_file(tmp_path, dataset):
    file = tmp_path / "run.nc"
    store.save(dataset, file, "abc")
    with pytest.raises(TypeError):
        store.save(dataset.assign_attrs(bad=object()), file, "abc")
    xr.testing.assert_equal(store.load(file, "abc"), dataset)
    assert [other.name for other in tmp_path.iterdir()] == ["run.nc"]


def test_a_file_of_another_config_is_set_aside_and_kept(tmp_path, dataset):
    file = tmp_path / "run.nc"
    store.save(dataset, file, "abc")
    with pytest.warns(UserWarning, match="holds a run with other settings: kept as run-abc.nc, starting anew"):
        assert store.load(file, "xyz") is None
    assert not file.exists()
    xr.testing.assert_equal(store.load(tmp_path / "run-abc.nc", "abc"), dataset)


def test_a_corrupt_or_foreign_file_is_refused_and_kept(tmp_path, dataset):
    corrupt, foreign = tmp_path / "corrupt.nc", tmp_path / "foreign.nc"
    corrupt.write_bytes(b"not netCDF")
    write_netcdf(dataset, foreign)
    with pytest.raises(ValueError, match=r"out: got .*corrupt.nc, which is not a netCDF file, or a damaged one"):
        store.load(corrupt, "abc")
    with pytest.raises(ValueError, match=r"out: got .*foreign.nc, which no experiment wrote"):
        store.load(foreign, "abc")
    assert corrupt.exists() and foreign.exists()
