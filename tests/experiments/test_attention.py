"""Attention that learns at a tiny size: the numbers, and the files."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from thermoformer.experiments.attention import ANNEALED, APPROACHES, STUDY, AttentionConfig
from thermoformer.experiments.attention.descent import overlap
from thermoformer.experiments.attention.one_parameter import OneParameterConfig

from .test_page import assert_written

TINY = AttentionConfig(
    teachers=1,
    ratios=(12.0,),
    normalisations=("softmax",),
    token_width=4,
    tokens=4,
    test_examples=50,
    starts=8,
    sampled=1,
    draws=60,
    warmup=40,
    descents=8,
    steps=500,
    one_parameter=OneParameterConfig(data_sets=1, widths=(1, 300), nodes=41),
)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return STUDY.run(TINY, tmp_path_factory.mktemp("attention"))


def test_page_and_files(page):
    assert_written(page, ["teachers", "assumption"], tables=["attention"])
    found = xr.load_dataset(page.with_suffix(".nc"), engine="h5netcdf")
    assert all(variable.attrs["long_name"] for variable in found.data_vars.values())
    text = page.read_text()
    assert "Softmax attention." in text and "What the saddle assumes" in text


def test_with_many_labels_all_approaches_find_the_teacher(page):
    found = xr.load_dataset(page.with_suffix(".nc"), engine="h5netcdf").squeeze(["normalisation", "ratio", "teacher"])
    assert found.approach.values.tolist() == list(APPROACHES)
    assert (found.overlap > 0.9).all()
    assert (found.test_error < found.uniform_error / 3).all() and found.teacher_error < 0.1
    assert 0 < found.share.sel(approach=ANNEALED) <= 1 and found.gain.sel(approach=ANNEALED) > 0
    # One parameter: both approximations are right in wide networks, and the Gaussian process is not in narrow ones.
    assert (found.variation.sel(width=300) < 0.05).all()
    assert found.variation.sel(width=1, theory="gaussian process") > found.variation.sel(width=1, theory="saddle")


def test_overlap_is_that_of_directions():
    assert overlap(np.array([[1.0, 0.0], [-3.0, 3.0]]), np.array([0.0, 2.0])) == pytest.approx([0, np.sqrt(0.5)])
