"""Checkpoints of a running training: what it takes to go on to the bit, and the check that it is the same run."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from .._locks import held
from .._validation import fail
from .network_files import read_arrays, write_arrays

CHECKPOINT = "thermoformer training 1"

# Tokens are computed in float32, and not to the same bit on every machine.
_DATA_TOLERANCE = 1e-4
_HEADER = {"step": int, "stopped": str, "settings": dict, "data": list}


class TrainingState(NamedTuple):
    """Where a training stands.

    Fields:
        step: steps done.
        parameters, optimiser: the weights that are trained and what Adam remembers of them.
        best: the weights with the lowest validation loss so far.
        losses: training loss of each step done.
        validation: rows (step, loss, accuracy), one per validation.
        stopped: why it ended; empty while it goes on.
    """

    step: int
    parameters: Any
    optimiser: Any
    best: Any
    losses: np.ndarray
    validation: np.ndarray
    stopped: str


def write_checkpoint(file: Path, state: TrainingState, settings: dict[str, Any], data: list[float]) -> None:
    """Writes the state, whole; settings are plain values that decide the run, data numbers that tell data apart."""
    arrays = {"losses": state.losses, "validation": state.validation}
    for name in ("parameters", "optimiser", "best"):
        arrays |= _named(name, getattr(state, name))
    header = {"step": state.step, "stopped": state.stopped, "settings": settings, "data": data}
    write_arrays(file, CHECKPOINT, arrays, header)


def read_checkpoint(file: Path, fresh: TrainingState, settings: dict[str, Any], data: list[float]) -> TrainingState:
    """The state in a file, which must be of the same run.

    Arguments:
        fresh: the state that a new run would start from: its shapes are those expected.
    """
    arrays, header = read_arrays(file, CHECKPOINT)
    for name, kind in _HEADER.items():
        if type(header.get(name)) is not kind:
            raise _damaged(file, f"{name} in its header is missing or of another type")
    found, seen = header["settings"], header["data"]
    for name, value in settings.items():
        if found.get(name) != value:
            expected = f"{name} = {found.get(name)!r} as in {file}, or another file; it is left as it is"
            raise fail("checkpoint", f"a run with {name} = {value!r}", expected)
    numbers = [one for one in seen if type(one) is float]
    if len(numbers) != len(data) or not np.allclose(numbers, data, rtol=_DATA_TOLERANCE):
        raise fail("checkpoint", f"{file}, a run on other data", "the same data, or another file; it is left as it is")
    try:
        trees = {name: _restored(name, getattr(fresh, name), arrays) for name in ("parameters", "optimiser", "best")}
        losses, validation = arrays["losses"], arrays["validation"]
        if losses.shape != (header["step"],) or validation.shape[1:] != (3,):
            raise ValueError(f"losses {losses.shape} and validation {validation.shape} of {header['step']} steps")
        return fresh._replace(
            step=header["step"], losses=losses, validation=validation, stopped=header["stopped"], **trees
        )
    except (KeyError, ValueError) as error:
        raise _damaged(file, str(error)) from error


def _damaged(file: Path, why: str) -> ValueError:
    expected = "a whole checkpoint, or another file; it is left as it is"
    return fail("checkpoint", f"{file}, which is damaged ({why})", expected)


def sole_writer(file: Path) -> AbstractContextManager[None]:
    """Keeps a checkpoint for this process: two that write in turns would undo each other's steps."""

    def refusal(who: str) -> ValueError:
        return fail("checkpoint", f"{file}, which {who} is training into", "it to be free, or another file")

    return held(file.with_name(f".{file.name}.lock"), refusal)


def _named(prefix: str, tree: Any) -> dict[str, np.ndarray]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {prefix + jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}


def _restored(prefix: str, template: Any, arrays: dict[str, np.ndarray]) -> Any:
    """The tree with the shapes and types of a template, filled from the arrays by name."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(template)
    filled = []
    for path, leaf in leaves:
        name = prefix + jax.tree_util.keystr(path)
        array = arrays[name]
        if array.shape != leaf.shape or array.dtype != leaf.dtype:
            raise ValueError(f"{name} is {array.dtype}{array.shape} and not {leaf.dtype}{leaf.shape}")
        filled.append(jax.numpy.asarray(array))
    return jax.tree_util.tree_unflatten(structure, filled)
