"""What the command line reads and writes of attention dynamics: files of features and of orbits."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from ._files import open_file, read_netcdf, write_netcdf
from ._reports import settings_of
from ._validation import InputError, check_memory, fail
from .dynamics import Features, MeanField, Orbit, Window

PAPER = "paper"
# Features that are known by correlations only have no tokens to start from: they start from this value everywhere.
_SMALL_START = 0.1
# The paper's values, taken for features without positional bits where a command is given none.
_USUAL_EPSILON, _USUAL_CONTEXT = 0.02, 4
_HDF5 = b"\x89HDF\r\n\x1a\n"
# Arrays of the size of a window that a step of the map takes, at most.
_COPIES = 16
# At a million steps per second these take eleven days.
MOST_STEPS = 10**12


def read_features(file: str) -> Features:
    """Features from a file, as `Features.from_file` takes them; `paper` for the paper's own."""
    if file == PAPER:
        return Features.paper()
    try:
        return Features.from_file(file)
    except InputError as error:
        if error.argument != "features":
            raise
        raise type(error)(error.argument, error.got, f"{error.expected}, or the word {PAPER}") from error


def mean_field(file: str, **settings: Any) -> tuple[MeanField, Window]:
    """The mean-field map of the features in a file, and a start: the window that its first pattern of o leads to.

    Arguments:
        file: as in `read_features`.
        settings: those of `MeanField`. An epsilon of None is that of the paper, or 0 without positional bits; a context
            of None is then that of the paper, since there is no usual one.
    """
    features = read_features(file)
    bits = features.positional_bits
    if settings.get("epsilon") is None:
        settings["epsilon"] = _USUAL_EPSILON if bits else 0.0
    if settings.get("context") is None and not bits:
        settings["context"] = _USUAL_CONTEXT
    if (context := settings.get("context")) is not None:
        numbers = max(context, 0) * features.heads * features.count
        check_memory("context", context, 8 * _COPIES * numbers)
    model = MeanField(features, **settings)
    if features.columns is not None:
        return model, model.window()
    assert model.context is not None
    return model, model.window(np.full((model.context, features.count), _SMALL_START))


def check_sizes(model: MeanField, *, kept: int = 0, directions: int = 0, **steps: int) -> None:
    """Refuses runs that cannot end, or that do not fit into memory.

    Arguments:
        kept: rows of an orbit that are kept.
        directions: tangents that are followed, for Lyapunov exponents.
        steps: numbers of steps, by the name of their option.
    """
    for name, count in steps.items():
        if count > MOST_STEPS:
            raise fail(name, count, f"at most {MOST_STEPS}")
    features, context = model.features, model.context or 1
    row = features.heads * (context + 4 * features.count)
    # Three times: in pieces, as one array, and as the file that is being written.
    check_memory("steps", kept, 3 * 8 * kept * row)
    check_memory("context", context, 8 * _COPIES * directions * model.dimension)


def refuse_no_orbit(file: Path) -> None:
    """Refuses to write over a file that `write_orbit` did not write."""
    if not os.path.lexists(file):
        return
    error = fail("out", f"{file}, which is not an orbit of this command", "a new file, or an orbit to replace")
    with open_file(file, name="out", expected="a new file, or an orbit to replace") as stream:
        if stream.read(len(_HDF5)) != _HDF5:
            raise error
    found = read_netcdf(file, name="out")
    if "m_o" not in found or "transient" not in found.attrs:
        raise error


def write_orbit(model: MeanField, orbit: Orbit, transient: int, file: Path) -> None:
    """The whole orbit as netCDF, with the settings as attributes; folders that are missing are made."""
    file.parent.mkdir(parents=True, exist_ok=True)
    attributes = settings_of(model) | {"transient": transient}
    write_netcdf(orbit.to_xarray().assign_attrs(attributes), file)
