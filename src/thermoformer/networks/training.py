"""Gradient descent on a whole network, queries and keys included (experiments §2).

Steps are taken in V/√(fan-in), the weights as most code writes them, because one Adam step moves every weight by about
the learning rate, however large it is. Q and K have no such factor (learning §1). What comes out is in the form of §1.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from .._keys import KeyLike, as_key, standard_normal
from .._validation import (
    batch_arrays,
    fail,
    float32_tokens,
    instance,
    labels_for,
    nonnegative_integer,
    nonnegative_number,
    one_of,
    positive_integer,
    positive_number,
)
from ..learning.architecture import Architecture, checked_architecture
from ..learning.network import Weights, prior_weights
from ..learning.paths import READOUTS
from ..learning.sampling import Report
from .attention_network import AttentionNetwork, checked_network, path_outputs
from .files import TrainingState, read_checkpoint, sole_writer, write_checkpoint

if TYPE_CHECKING:
    import xarray

Batches = Callable[[int], tuple[Any, Any]]

# Products of float32 numbers: rounded to 11 significant bits first on GPUs that do so faster (sums stay float32).
PRODUCTS = {"float32": jax.lax.Precision.HIGHEST, "tensorfloat32": jax.lax.Precision.DEFAULT}
# Examples of the validation set that are held in memory at a time.
_VALIDATION_CHUNK = 512
# Steps between two calls of progress.
_REPORT_EVERY = 50


@dataclass(frozen=True)
class TrainingSettings:
    """How a network is trained: Adam on the mean squared error.

    Arguments:
        steps: batches seen, at most.
        key_size: G, the rows of Q and K of each head.
        readout: "mean", "last" or "first" query position.
        learning_rate: Adam's rate, on weights divided by the root of their fan-in.
        weight_decay: times the weights, added to the gradient before Adam.
        clip: gradients of all weights together are clipped at this norm; None turns clipping off.
        head_dropout: probability with which each head is left out, for each example and step anew. As in pruning, the
            layer is rescaled to the heads it has left, and one is always left.
        frozen_heads: queries and keys stay as they are, and the other weights are trained.
        warmup: steps over which the rate rises from 0.
        schedule: "cosine" down to 0 at the last step, or "constant".
        scale: standard deviation of the initial V⁰, V and a.
        key_scale: standard deviation of the initial Q and K, times √N0.
        validate_every: steps from one validation to the next.
        patience: validations without a lower loss after which training stops; None: it never stops early.
        checkpoint_every: steps from one checkpoint to the next.
        precision: "float32"; "tensorfloat32", the mixed precision of GPUs: factors of products rounded to 11 bits,
            sums and master weights in float32; "auto" for the second on a GPU and the first elsewhere.

    Example:
        >>> TrainingSettings(steps=100, key_size=8).learning_rate
        0.001
    """

    steps: int = 41_000
    key_size: int = 128
    readout: str = "mean"
    learning_rate: float = 1e-3
    weight_decay: float = 5e-5
    clip: float | None = 1.0
    head_dropout: float = 0.0
    frozen_heads: bool = False
    warmup: int = 0
    schedule: str = "cosine"
    scale: float = 1.0
    key_scale: float = 0.5
    validate_every: int = 500
    patience: int | None = None
    checkpoint_every: int = 1000
    precision: str = "auto"

    def __post_init__(self) -> None:
        for name in ("steps", "key_size", "validate_every", "checkpoint_every"):
            positive_integer(name, getattr(self, name))
        if nonnegative_integer("warmup", self.warmup) >= self.steps:
            raise fail("warmup", self.warmup, f"fewer than the {self.steps} steps")
        if self.patience is not None:
            positive_integer("patience", self.patience)
        for name in ("learning_rate", "scale", "key_scale", *(() if self.clip is None else ("clip",))):
            positive_number(name, getattr(self, name))
        nonnegative_number("weight_decay", self.weight_decay)
        if nonnegative_number("head_dropout", self.head_dropout) >= 1:
            raise fail("head_dropout", self.head_dropout, "a probability below 1")
        one_of("readout", self.readout, READOUTS)
        one_of("schedule", self.schedule, ("cosine", "constant"))
        one_of("precision", self.precision, ("auto", *PRODUCTS))

    @property
    def products(self) -> str:
        """The precision that is used on this machine."""
        if self.precision != "auto":
            return self.precision
        return "float32" if jax.default_backend() == "cpu" else "tensorfloat32"


def learning_rate(settings: TrainingSettings, step: int) -> float:
    """The rate of a step, counted from 0: up in a line to the full rate, then constant or down along a cosine to 0."""
    if step < settings.warmup:
        return settings.learning_rate * step / settings.warmup
    if settings.schedule == "constant":
        return settings.learning_rate
    turn = math.pi * (step - settings.warmup) / (settings.steps - settings.warmup)
    return settings.learning_rate * (1 + math.cos(turn)) / 2


@dataclass(frozen=True, eq=False)
class Training:
    """A finished training.

    Fields:
        network: the network with the lowest validation loss.
        history: the training loss at each step; validation loss and accuracy at each validation step.
        best_step: steps done when the validation loss was lowest.
        best_loss, best_accuracy: of the validation set at that step.
        stopped: why it ended, in words.
        precision: of the products, as used: "float32" or "tensorfloat32".
    """

    network: AttentionNetwork
    history: xarray.Dataset
    best_step: int
    best_loss: float
    best_accuracy: float
    stopped: str
    precision: str


class Parameters(NamedTuple):
    """What Adam moves: weights over the root of their fan-in, queries and keys as they are; float32."""

    embedding: Array
    values: tuple[Array, ...]
    readout: Array
    queries: tuple[Array, ...]
    keys: tuple[Array, ...]


def train(
    arch: Architecture,
    batches: Batches,
    validation: tuple[Any, Any],
    *,
    settings: TrainingSettings | None = None,
    key: KeyLike,
    start: AttentionNetwork | None = None,
    checkpoint: str | Path | None = None,
    progress: Report | None = None,
) -> Training:
    """A network trained by gradient descent, from random weights or from a given network; queries and keys included.

    Arguments:
        arch: sizes; the variances play no role.
        batches: batch number → (tokens [example, token, feature], labels [example]); equal numbers must give equal
            batches where a checkpoint is to be resumed.
        validation: tokens and labels in the same form.
        settings: all other settings; default: `TrainingSettings()`.
        key: of the initial weights.
        start: a network of the same sizes to continue from (fine-tuning). Its weights, key sizes and readout are used,
            those of the settings and the key are ignored, and Adam starts afresh.
        checkpoint: a file that is rewritten along the way. If it exists and belongs to the same run, training resumes
            from it as if it had not been interrupted: to the same bit on the same CPU; a GPU may sum in another order.
            One process at a time may train into it; a second is refused.
        progress: called as progress(steps done, steps in all, message).

    Example:
        >>> import numpy as np
        >>> x = np.random.default_rng(0).normal(size=(32, 5, 4))
        >>> y = x[:, :, 0].mean(axis=1)
        >>> quick = TrainingSettings(steps=60, key_size=2, learning_rate=0.02, validate_every=20)
        >>> trained = train(Architecture((2,), 8), lambda step: (x, y), (x, y), settings=quick, key=0)
        >>> bool(trained.best_loss < 0.1 * trained.history.loss[0]), trained.stopped
        (True, 'all 60 steps done')
    """
    checked_architecture(arch)
    settings = TrainingSettings() if settings is None else settings
    instance("settings", settings, TrainingSettings, "a TrainingSettings")
    if start is not None:
        checked_network("start", start)
    tokens, labels = _checked_batch("batches(0)", arch, batches(0))
    held_out = _checked_batch("validation", arch, validation)
    if held_out[0].shape[1:] != tokens.shape[1:]:
        raise fail("validation", f"tokens {held_out[0].shape[1:]}", f"{tokens.shape[1:]}, as in batches(0)")
    random = as_key(key)
    if start is None:
        parameters = initial_parameters(arch, tokens.shape[2], settings, random)
    else:
        settings = dataclasses.replace(settings, readout=start.readout)
        parameters = _parameters_of(start, arch, tokens.shape[2])
    memory = jax.jit(_optimiser(settings.weight_decay, settings.clip).init)(parameters)
    fresh = TrainingState(0, parameters, memory, parameters, np.zeros(0, np.float32), np.zeros((0, 3)), "")
    identity = _identity(arch, settings, random) | {"start": None if start is None else start.digest}
    data = [number for pair in ((tokens, labels), held_out) for number in _signature(*pair)]
    file = None if checkpoint is None else Path(checkpoint)

    def state_so_far() -> TrainingState:
        return fresh if file is None or not file.exists() else read_checkpoint(file, fresh, identity, data)

    state = state_so_far()
    # A finished run is read without a lock: its folder may be one that cannot be written to.
    if not state.stopped:
        descent = _Descent(arch, settings, random, batches, held_out, tokens.shape[1:], progress or (lambda *_: None))
        with nullcontext() if file is None else sole_writer(file):
            # Another process may have gone on with it before the lock was ours.
            state = state_so_far()
            while not state.stopped:
                state = descent.advance(state)
                if file is not None:
                    write_checkpoint(file, state, identity, data)
    return _training(arch, settings, state)


@dataclass(frozen=True, eq=False)
class _Descent:
    """The parts of a run that do not change."""

    arch: Architecture
    settings: TrainingSettings
    key: Array
    batches: Batches
    validation: tuple[np.ndarray, np.ndarray]
    frame: tuple[int, ...]
    progress: Report

    def advance(self, state: TrainingState) -> TrainingState:
        """The state after the next checkpoint's worth of steps, or at the end."""
        settings = self.settings
        # A compiled step depends on these; other settings may change without compiling again.
        names = ("readout", "products", "weight_decay", "clip", "head_dropout", "frozen_heads")
        update = partial(_step, self.key, arch=self.arch, **{name: getattr(settings, name) for name in names})
        parameters, optimiser, best = state.parameters, state.optimiser, state.best
        losses, rows, stopped = list(state.losses), list(state.validation), ""
        until = min(settings.steps, (state.step // settings.checkpoint_every + 1) * settings.checkpoint_every)
        done, pending = state.step, []
        while done < until and not stopped:
            rate = np.float32(learning_rate(settings, done))
            parameters, optimiser, loss = update(done, rate, parameters, optimiser, *self._batch(done))
            pending.append(loss)
            done += 1
            if done % settings.validate_every == 0 or done == settings.steps:
                losses += self._finite(pending, done)
                pending = []
                row = (done, *self._validate(parameters, done))
                if not rows or row[1] < min(float(earlier[1]) for earlier in rows):
                    best = parameters
                rows.append(row)
                stopped = self._verdict(rows, done)
            if done % _REPORT_EVERY == 0 or done == until:
                self.progress(done, settings.steps, _message(losses, rows))
        losses += self._finite(pending, done)
        history = np.array(losses, np.float32), np.array(rows).reshape(-1, 3)
        return TrainingState(done, parameters, optimiser, best, *history, stopped)

    def _batch(self, number: int) -> tuple[Array, Array]:
        x, y = batch_arrays(f"batches({number})", self.batches(number))
        examples, outputs = len(x) if x.ndim else 0, self.arch.outputs
        labels = (examples,) if outputs == 1 else (examples, outputs)
        alike = y.shape == labels or (outputs == 1 and y.shape == (examples, 1))
        if examples == 0 or x.shape[1:] != self.frame or not alike:
            per_example = "one label" if outputs == 1 else f"{outputs} labels"
            expected = f"[example, {', '.join(map(str, self.frame))}] and {per_example} per example, as in batches(0)"
            raise fail(f"batches({number})", f"shapes {x.shape} and {y.shape}", expected)
        return jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32).reshape(labels)

    def _finite(self, pending: list[Array], done: int) -> list[np.float32]:
        """The losses of the last steps, fetched; one that is not finite ends the run before anything is written."""
        losses = [np.float32(loss) for loss in jax.device_get(pending)]
        bad = [index for index, loss in enumerate(losses) if not np.isfinite(loss)]
        if bad:
            step = done - len(losses) + bad[0]
            expected = "finite numbers: a lower learning_rate, or finite tokens and labels in that batch"
            raise fail("loss", f"{losses[bad[0]]} at step {step}", expected)
        return losses

    def _validate(self, parameters: Parameters, done: int) -> tuple[float, float]:
        x, y = self.validation
        predict = partial(_predictions, self.arch, self.settings.readout, self.settings.products, parameters)
        chunks = [x[start : start + _VALIDATION_CHUNK] for start in range(0, len(x), _VALIDATION_CHUNK)]
        parts = [np.asarray(predict(jnp.asarray(chunk))) for chunk in chunks]
        predicted = np.concatenate(parts).astype(float)
        loss = float(np.mean((predicted - y) ** 2))
        if not math.isfinite(loss):
            expected = "a finite number: smaller tokens and labels there, or a lower learning_rate"
            raise fail("validation", f"a loss of {loss} at step {done}", expected)
        return loss, _accuracy(predicted, y)

    def _verdict(self, rows: list, done: int) -> str:
        settings = self.settings
        if done == settings.steps:
            return f"all {done} steps done"
        since = len(rows) - 1 - int(np.argmin([row[1] for row in rows]))
        if settings.patience is not None and since >= settings.patience:
            return f"no lower validation loss in {since} validations, at step {done}"
        return ""


def _optimiser(weight_decay: float, clip: float | None) -> optax.GradientTransformation:
    """Adam without its rate: what it returns is to be subtracted, times the rate."""
    clipping = optax.identity() if clip is None else optax.clip_by_global_norm(clip)
    return optax.chain(clipping, optax.add_decayed_weights(weight_decay), optax.scale_by_adam())


@partial(
    jax.jit, static_argnames=("arch", "readout", "products", "weight_decay", "clip", "head_dropout", "frozen_heads")
)
def _step(
    key,
    number,
    rate,
    parameters,
    state,
    x,
    y,
    *,
    arch,
    readout,
    products,
    weight_decay,
    clip,
    head_dropout,
    frozen_heads,
):
    """Parameters and state of the optimiser after one batch, and its loss before."""
    heads = {"queries": parameters.queries, "keys": parameters.keys} if frozen_heads else {}
    factors = None
    if head_dropout:
        factors = dropped_heads(arch, head_dropout, jax.random.fold_in(key, number), len(x))

    def mean_squared_error(parameters: Parameters) -> Array:
        parameters = parameters._replace(**heads)  # constants, so that they have no gradient
        return jnp.mean((_outputs(arch, readout, products, parameters, x, factors) - y) ** 2)

    loss, gradient = jax.value_and_grad(mean_squared_error)(parameters)
    direction, state = _optimiser(weight_decay, clip).update(gradient, state, parameters)
    moved = jax.tree.map(lambda weight, change: weight - rate * change, parameters, direction)
    return moved._replace(**heads), state, loss


def dropped_heads(arch: Architecture, rate: float, key: Array, examples: int) -> Float[Array, "example path"]:
    """Factors of all paths where every head is left out with a probability, by example: those of `path_factors`."""
    factors = jnp.ones((examples, arch.paths), jnp.float32)
    for layer, (count, one) in enumerate(zip(arch.heads, jax.random.split(key, arch.layers), strict=True)):
        drawn = jax.random.uniform(one, (examples, count))
        kept = (drawn >= rate) | (drawn == drawn.max(axis=1, keepdims=True))
        scale = kept * jnp.sqrt(count / kept.sum(axis=1, keepdims=True))
        # A path that skips the layer has number −1, the last column.
        scale = jnp.concatenate([scale, jnp.ones((examples, 1))], axis=1)
        factors = factors * scale[:, arch.path_heads()[:, layer]].astype(jnp.float32)
    return factors


def _outputs(
    arch: Architecture, readout: str, products: str, parameters: Parameters, x: Array, factors: Array | None = None
) -> Array:
    weights = _weights(arch, parameters)
    return path_outputs(arch, weights, parameters.queries, parameters.keys, x, readout, PRODUCTS[products], factors)


_predictions = jax.jit(_outputs, static_argnums=(0, 1, 2))


def initial_parameters(arch: Architecture, token_width: int, settings: TrainingSettings, key: Array) -> Parameters:
    """Random weights: V⁰, V and a are N(0, scale²) in the form of learning §1, Q and K are N(0, key_scale²/N0)."""
    weight_key, *layer_keys = jax.random.split(key, 2 * arch.layers + 1)
    weights = prior_weights(arch.replace(variances=settings.scale**2), token_width, key=weight_key)
    deviation = settings.key_scale / math.sqrt(token_width)
    maps = [
        deviation * standard_normal(one, (heads, settings.key_size, token_width))
        for one, heads in zip(layer_keys, arch.heads * 2, strict=True)
    ]
    return _divided(arch, weights, tuple(maps[: arch.layers]), tuple(maps[arch.layers :]))


def _parameters_of(start: AttentionNetwork, arch: Architecture, token_width: int) -> Parameters:
    """The parameters to train, from a network to continue from."""
    asked = arch.replace(variances=start.arch.variances)  # the variances play no role
    if start.arch != asked or start.token_width != token_width:
        got = f"heads {start.arch.heads}, widths {start.arch.widths}, tokens of width {start.token_width}"
        expected = f"heads {arch.heads}, widths {arch.widths}, tokens of width {token_width}, and the outputs and skips"
        raise fail("start", got, f"{expected} of arch")
    return _divided(arch, start.weights, start.queries, start.keys)


@jax.jit
def _divided(arch: Architecture, weights: Weights, queries: tuple[Array, ...], keys: tuple[Array, ...]) -> Parameters:
    """The parameters to train, from the weights of learning §1."""
    parameters = Parameters(*_multiplied(arch, weights, -0.5), queries, keys)
    return jax.tree.map(lambda array: array.astype(jnp.float32), parameters)


@jax.jit
def _weights(arch: Architecture, parameters: Parameters) -> Weights:
    """The weights of learning §1, from the trained parameters."""
    return _multiplied(arch, Weights(*parameters[:3]), 0.5)


def _multiplied(arch: Architecture, weights: Weights, power: float) -> Weights:
    """Weights times a power of their fan-in N0, N_1..N_L, N_a."""
    first, *inner, last = (float(width) ** power for width in (weights.embedding.shape[1], *arch.widths))
    values = tuple(value * factor for value, factor in zip(weights.values, inner, strict=True))
    return Weights(weights.embedding * first, values, weights.readout * last)


def _training(arch: Architecture, settings: TrainingSettings, state: TrainingState) -> Training:
    import xarray

    best: Parameters = state.best
    network = AttentionNetwork(arch, _weights(arch, best), best.queries, best.keys, settings.readout)
    steps, loss, accuracy = state.validation.T
    data = {
        "loss": ("step", state.losses, {"long_name": "mean squared error of the batch"}),
        "validation_loss": ("validation_step", loss, {"long_name": "mean squared error of the validation set"}),
        "validation_accuracy": ("validation_step", accuracy, {"long_name": "accuracy on the validation set"}),
    }
    axes = {"step": np.arange(1, len(state.losses) + 1), "validation_step": steps.astype(int)}
    at = int(np.argmin(loss))
    best_at = int(steps[at]), float(loss[at]), float(accuracy[at])
    return Training(network, xarray.Dataset(data, axes), *best_at, state.stopped, settings.products)


def _identity(arch: Architecture, settings: TrainingSettings, key: Array) -> dict[str, Any]:
    """Plain values that decide the numbers of a run, as JSON gives them back."""
    fields = dataclasses.asdict(settings) | {"precision": settings.products}
    sizes = {"heads": list(arch.heads), "widths": list(arch.widths), "outputs": arch.outputs, "skip": arch.skip}
    # How often a checkpoint is written changes nothing.
    del fields["checkpoint_every"]
    for name in ("head_dropout", "frozen_heads"):  # so that checkpoints from before they existed are resumed
        if not fields[name]:
            del fields[name]
    return sizes | fields | {"key": np.asarray(jax.random.key_data(key)).tolist()}


def _checked_batch(name: str, arch: Architecture, batch: tuple[Any, Any]) -> tuple[np.ndarray, np.ndarray]:
    x, y = batch_arrays(name, batch)
    tokens = float32_tokens(f"{name}: tokens", x)
    return tokens, labels_for(f"{name}: labels", y, len(tokens), arch.outputs)


def _signature(x: np.ndarray, y: np.ndarray) -> list[float]:
    """Three numbers: enough to notice other images, another seed or another batch size."""
    order = np.linspace(0, 1, y.size).reshape(y.shape)
    with np.errstate(over="ignore"):  # infinity tells one set from another as well
        return [float(np.abs(x).mean()), float((x**2).mean()), float((y * order).sum())]


def _accuracy(predicted: np.ndarray, labels: np.ndarray) -> float:
    """How often the sign is right; the largest entry, with several outputs."""
    if labels.ndim == 2:
        return float(np.mean(predicted.argmax(axis=1) == labels.argmax(axis=1)))
    return float(np.mean(np.where(predicted >= 0, 1.0, -1.0) == np.sign(labels)))


def _message(losses: list, rows: list) -> str:
    if not rows:
        return "training"
    recent = float(np.mean(losses[-100:]))
    return f"loss {recent:.3f}, validation loss {float(rows[-1][1]):.3f}, accuracy {100 * float(rows[-1][2]):.1f} %"
