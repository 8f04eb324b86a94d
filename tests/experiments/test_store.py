"""Results on disk: whole or not at all, and with the fingerprint of the config that made them."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import xarray as xr

from thermoformer.experiments import store


@dataclass(frozen=True)
class Config:
    width: int = 10
    seeds: int = 2


@pytest.fixture
def dataset() -> xr.Dataset:
    return xr.Dataset({"accuracy": ("seed", [0.9, 0.8])}, {"seed": [0, 1]})


def test_fingerprint_sees_every_field():
    assert store.fingerprint(Config()) == store.fingerprint(Config())
    assert store.fingerprint(Config()) != store.fingerprint(Config(seeds=3))


def test_what_is_saved_is_there(tmp_path, dataset):
    file = tmp_path / "new" / "run.nc"
    store.save(dataset, file, "abc")
    saved = xr.load_dataset(file, engine=store.ENGINE)
    xr.testing.assert_equal(saved, dataset)
    assert saved.attrs["config_hash"] == "abc"
    assert [other.name for other in file.parent.iterdir()] == ["run.nc"]


def test_a_failed_save_leaves_the_old_file(tmp_path, dataset):
    file = tmp_path / "run.nc"
    store.save(dataset, file, "abc")
    with pytest.raises(TypeError):
        store.save(dataset.assign_attrs(bad=object()), file, "abc")
    xr.testing.assert_equal(xr.load_dataset(file, engine=store.ENGINE), dataset)
    assert [other.name for other in tmp_path.iterdir()] == ["run.nc"]
