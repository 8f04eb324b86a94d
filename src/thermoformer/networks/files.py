"""Networks and training checkpoints on disk: safetensors files with a header, written atomically."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from .._files import open_file, write_safely
from .._locks import locked
from .._validation import fail, one_of
from ..learning.architecture import Architecture
from ..learning.network import Weights
from .attention_network import AttentionNetwork, checked_network

NETWORK = "thermoformer network 1"
CHECKPOINT = "thermoformer training 1"

# Tokens are computed in float32, and not to the same bit on every machine.
_DATA_TOLERANCE = 1e-4
_HEADER = {"step": int, "stopped": str, "settings": dict, "data": list}
_TYPES = ("float16", "float32", "float64")


def save_network(network: AttentionNetwork, file: str | Path, *, precision: str = "float32") -> Path:
    """Writes a network to a safetensors file and returns its path.

    Arguments:
        file: where to write; an existing network is replaced, any other file is refused.
        precision: "float16", "float32" or "float64".

    Example:
        >>> import tempfile, numpy as np
        >>> from thermoformer.learning import prior_weights
        >>> arch, maps = Architecture((2,), 5), (np.ones((2, 3, 4)),)
        >>> network = AttentionNetwork(arch, prior_weights(arch, 4, key=0), maps, maps)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     load_network(save_network(network, folder + "/network.safetensors")).arch == arch
        True
    """
    one_of("precision", precision, _TYPES)
    checked_network("network", network)
    with np.errstate(over="ignore"):  # what does not fit is refused below
        arrays = {name: np.asarray(array).astype(precision) for name, array in _named_arrays(network).items()}
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise fail("precision", f"{precision}, too small for the largest entry of {name}", "float32 or float64")
    arch = network.arch
    header = {"heads": arch.heads, "widths": arch.widths, "variances": arch.variances, "outputs": arch.outputs}
    return write_arrays(Path(file), NETWORK, arrays, header | {"skip": arch.skip, "readout": network.readout})


def load_network(file: str | Path) -> AttentionNetwork:
    """The network that `save_network` wrote, with float64 arrays."""
    arrays, header = read_arrays(Path(file), NETWORK)
    try:
        readout = header.pop("readout")
        arch = Architecture(**header)
        layers = range(arch.layers)
        values, queries, keys = (
            tuple(arrays[f"{name}.{at}"] for at in layers) for name in ("values", "queries", "keys")
        )
        weights = Weights(arrays["embedding"], values, arrays["readout"])  # type: ignore[arg-type]
        return AttentionNetwork(arch, weights, queries, keys, readout)  # type: ignore[arg-type]
    except (KeyError, TypeError, ValueError) as error:
        raise fail(
            "file", f"{file}, whose arrays and header do not fit ({error})", "a file of `save_network`"
        ) from error


def write_arrays(file: Path, kind: str, arrays: Mapping[str, np.ndarray], header: Mapping[str, Any]) -> Path:
    """Writes a file atomically: at any moment the old or the new one exists. A file of another kind is kept."""
    if file.exists():
        read_header(file, kind)
    contiguous = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    text = json.dumps(dict(header))
    content = save(contiguous, metadata={"kind": kind, "header": text, "checksum": _checksum(text, contiguous)})
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise fail("file", f"{file} ({error.strerror})", "a file in a folder that can be written to") from error
    return write_safely(file, content, name="file")


def read_arrays(file: Path, kind: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """All arrays of a file and its header. The checksum is verified; files of earlier versions have none."""
    header = read_header(file, kind)
    try:
        with safe_open(file, "numpy") as opened:
            metadata = opened.metadata()
            arrays = {name: opened.get_tensor(name) for name in opened.keys()}
    except (SafetensorError, TypeError) as error:
        raise _not_ours(file, kind, str(error)) from error
    if metadata.get("checksum", (right := _checksum(metadata["header"], arrays))) != right:
        raise _not_ours(file, kind, "it is damaged: its checksum does not match its content")
    return arrays, header


def read_header(file: Path, kind: str) -> dict[str, Any]:
    """The header of a file of the given kind."""
    open_file(file, expected=f"a file of {kind!r}").close()
    try:
        with safe_open(file, "numpy") as opened:
            metadata = opened.metadata() or {}
        found, header = metadata.get("kind"), json.loads(metadata.get("header", "null"))
    except (SafetensorError, OSError, ValueError) as error:
        raise _not_ours(file, kind, f"it is damaged, or no safetensors file: {error}") from error
    if found != kind or not isinstance(header, dict):
        raise _not_ours(file, kind, f"it is {found!r}" if found else "thermoformer did not write it")
    return header


def _checksum(header: str, arrays: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256(header.encode())
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()[:16]


def _not_ours(file: Path, kind: str, why: str) -> ValueError:
    return fail("file", f"{file} ({why})", f"a file of {kind!r}; it is left as it is")


def _named_arrays(network: AttentionNetwork) -> dict[str, Any]:
    named = {"embedding": network.weights.embedding, "readout": network.weights.readout}
    for name, layers in (("values", network.weights.values), ("queries", network.queries), ("keys", network.keys)):
        named |= {f"{name}.{at}": layer for at, layer in enumerate(layers)}
    return named


class TrainingState(NamedTuple):
    """The state of a training."""

    step: int
    parameters: Any
    optimiser: Any
    best: Any  # the parameters with the lowest validation loss so far
    losses: np.ndarray  # of each step
    validation: np.ndarray  # rows (step, loss, accuracy)
    stopped: str  # why it ended; empty while it is running


def write_checkpoint(file: Path, state: TrainingState, settings: dict[str, Any], data: list[float]) -> None:
    """Writes the state; settings are plain values that decide the run, data are numbers that identify the data."""
    arrays = {"losses": state.losses, "validation": state.validation}
    for name in ("parameters", "optimiser", "best"):
        arrays |= _named(name, getattr(state, name))
    header = {"step": state.step, "stopped": state.stopped, "settings": settings, "data": data}
    write_arrays(file, CHECKPOINT, arrays, header)


def read_checkpoint(file: Path, fresh: TrainingState, settings: dict[str, Any], data: list[float]) -> TrainingState:
    """The state in a file, which must be of the same run and have the shapes of the fresh state of a new run."""
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
    """Locks a checkpoint for this process: two writers would undo each other's steps."""

    def refusal(who: str) -> ValueError:
        return fail("checkpoint", f"{file}, which {who} is training into", "it to be free, or another file")

    return locked(file.with_name(f".{file.name}.lock"), refusal)


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
