"""The mean-field map of a self-attention network that feeds on its own output (dynamics §2)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import xarray as xr

from .._validation import fail, numpy_for, one_number, real_array, traced, true_or_false
from ._feature_checks import weight_of_positions
from .features import Features
from .lanes import Lanes
from .maps import check_names, lane_values
from .positions import context_and_positions, rotation_period
from .window_lanes import MeanFieldLanes, WindowState

ROLES = ("v", "q", "k")


@dataclasses.dataclass(frozen=True, eq=False)
class Window:
    """The tokens that attention sees, newest first.

    Fields:
        A: [token, feature], the attention output that made each token.
        positions: [context, bit], ±1, positional bits of the last L positions, the newest token's first; they rotate.
        first: overlaps by role of an explicit token x_0 that is still in the window, older than all others; else none.
    """

    A: np.ndarray
    positions: np.ndarray
    first: Mapping[str, np.ndarray] | None = None

    def to_xarray(self) -> xr.Dataset:
        """The window with named axes."""
        return xr.Dataset({"A": (("token", "feature"), self.A), "positions": (("position", "bit"), self.positions)})


@dataclasses.dataclass(frozen=True, eq=False)
class MeanField:
    """The deterministic map that the network becomes as its tokens grow: N → ∞ at fixed M, L.

    m_d = (1−ε) Σ_s p_s g_s tanh(β s·A_d) + ε · positional part;  w = softmax(γ/√M m^q_0 · m^k_d);  A' = Σ_d w_d m^v_d.

    Arguments:
        features: what the four roles look for.
        beta: β, the inverse temperature of the output.
        gamma: γ, the inverse temperature of attention.
        epsilon: ε, the weight of positions, in [0, 1].
        context: L; 2^B where absent.
        positions: [context, bit], the positional bits of positions 0, 1, ...; binary digits where absent.

    Example:
        >>> model = MeanField(Features.paper(), beta=1.27, gamma=220.0, epsilon=0.02)
        >>> model.context, model.dimension
        (4, 12)
    """

    features: Features
    beta: float
    gamma: float
    epsilon: float
    context: int | None = None
    positions: Any = None

    def __post_init__(self) -> None:
        if not isinstance(self.features, Features):
            raise fail("features", type(self.features).__name__, "Features")
        for name in ("beta", "gamma"):
            object.__setattr__(self, name, one_number(name, getattr(self, name)))
        object.__setattr__(self, "epsilon", weight_of_positions(self.epsilon))
        if self.features.positional_bits == 0 and not traced(self.epsilon) and self.epsilon > 0:
            raise fail("epsilon", self.epsilon, "0: these features have no positional bits")
        context, positions = context_and_positions(self.context, self.positions, self.features.positional_bits)
        object.__setattr__(self, "context", context)
        object.__setattr__(self, "positions", positions)

    @property
    def parameters(self) -> Mapping[str, float]:
        """What diagrams can vary."""
        return {"beta": self.beta, "gamma": self.gamma, "epsilon": self.epsilon}

    @property
    def dimension(self) -> int:
        """M·L: positions permute, and have no exponents of their own."""
        return self.features.features * self._context

    @property
    def observables(self) -> tuple[str, ...]:
        """m_o, feature by feature."""
        return tuple(f"m_o[{number}]" for number in range(self.features.features))

    def replace(self, **parameters: float) -> MeanField:
        """The same model with other parameters.

        Example:
            >>> MeanField(Features.paper(), 1.27, 220.0, 0.02).replace(beta=1.4).beta
            1.4
        """
        check_names("parameters", parameters, self.parameters)
        return dataclasses.replace(self, **parameters)

    def window(self, A0: Any = None, positions0: Any = None) -> Window:
        """A start from a full window.

        Arguments:
            A0: [context, feature], newest first. Absent: the window that the token start without x_0 leads to.
            positions0: [context, bit], newest first; the newest at the last position where absent.

        Example:
            >>> model = MeanField(Features.paper(), 1.27, 220.0, 0.02)
            >>> model.window(np.full((4, 3), 0.1)).positions[0].tolist()
            [1.0, 1.0]
        """
        if A0 is None:
            return self.settled(self.token())[0]
        A = real_array("A0", A0, ("token", "feature"))
        if A.shape != (self._context, self.features.features):
            expected = f"[{self._context}, {self.features.features}]: context and features of the model"
            raise fail("A0", f"shape {A.shape}", expected)
        if positions0 is None:
            return Window(A, self.positions[::-1].copy())
        bits = self.features.positional_bits
        positions = np.asarray(positions0, np.float64)
        if positions.shape != (self._context, bits):
            raise fail("positions0", f"shape {positions.shape}", f"[{self._context}, {bits}]: context and bits")
        if not np.isin(positions, (-1, 1)).all():
            raise fail("positions0", "entries other than ±1", "±1 only")
        return Window(A, positions)

    def token(self, x0: Any = None, *, keep: bool = False) -> Window:
        """A start from one token at position 0; the window grows from there.

        Arguments:
            x0: [column + bit], values in [−1, 1]: the columns of the features, then the positional bits; the first
                pattern of o with the bits of position 0 where absent.
            keep: whether x_0 itself stays in the window until it is full, as in the finite network. Otherwise the first
                token is the one that A_0 = m^v(x_0) makes.

        Example:
            >>> MeanField(Features.paper(), 1.27, 220.0, 0.02).token().A.round(4).tolist()
            [[0.3467, 0.3267, 0.98]]
        """
        overlaps = self.features.token_overlaps(self.first_token() if x0 is None else x0, self.epsilon)
        rotated = np.roll(self.positions[::-1], 1, axis=0)
        if true_or_false("keep", keep):
            return Window(np.zeros((0, self.features.features)), rotated, overlaps)
        return Window(overlaps["v"].sum(axis=0)[None], rotated)

    def first_token(self) -> np.ndarray:
        """The first pattern of o, with the bits of position 0."""
        if self.features.columns is None:
            raise fail("x0", "nothing", "a window start: features known by correlations only have no tokens")
        return np.concatenate([self.features.columns["o"][0], self.positions[0]])

    def step(self, window: Window) -> Window:
        """One step, of a window that may still be growing; plain NumPy, for few steps and for checks.

        Example:
            >>> model = MeanField(Features.paper(), 1.27, 220.0, 0.02)
            >>> model.step(model.token()).A.shape
            (2, 3)
        """
        A, _ = self.look(window)
        kept = numpy_for(A, window.A).concatenate([A[None], window.A])
        room = self._context - 1  # for the tokens before the new one
        first = window.first if len(window.A) < room else None
        return Window(kept[: self._context], numpy_for(window.positions).roll(window.positions, 1, axis=0), first)

    def look(self, window: Window) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """A' of a window, and the overlaps of its newest token by role: o [feature], others [head, feature]."""
        tokens = self.overlaps(window.A, window.positions[: len(window.A)])
        xp = numpy_for(tokens, window.first, self.gamma)
        if window.first is not None:
            tokens = {role: xp.concatenate([tokens[role], window.first[role][None]]) for role in tokens}
        scale = self.gamma / np.sqrt(self.features.features)
        logits = scale * xp.einsum("ha,dha->dh", tokens["q"][0], tokens["k"])
        powers = xp.exp(logits - logits.max(axis=0)[None])
        attention = xp.einsum("dh,dha->a", powers / powers.sum(axis=0)[None], tokens["v"])
        return attention, {role: tokens[role][0] for role in tokens}

    def overlaps(self, A: np.ndarray, positions: np.ndarray) -> dict[str, np.ndarray]:
        """Overlaps of tokens by role: o [token, feature] (semantic part), others [token, head, feature].

        Arguments:
            A: [token, feature].
            positions: [token, bit].
        """
        xp = numpy_for(A, positions, self.beta, self.epsilon)
        means = xp.tanh(self.beta * A @ self.features.signs.T)
        share, bits = 1 - self.epsilon, max(self.features.positional_bits, 1)
        found = {"o": share * means @ self.features.weights["o"]}
        for role in ROLES:
            semantic = xp.einsum("ds,sha->dha", means, self.features.weights[role])
            positional = xp.einsum("di,hai->dha", positions, self.features.positional[role]) / bits
            found[role] = share * semantic + self.epsilon * positional
        return found

    def settled(self, state: Window) -> tuple[Window, int]:
        """The window when it is full of the map's own tokens, and the steps that took."""
        self.check(state)
        steps = 0
        while len(state.A) < self._context:
            state, steps = self.step(state), steps + 1
        return state, steps

    def lanes(self, parameters: Mapping[str, Any], state: Window, count: int = 1) -> MeanFieldLanes:
        """Copies of the model side by side, for windows at the positions of a given one."""
        values = lane_values(self.parameters, parameters, count)
        positions = state.positions[::-1]  # slots hold the oldest token first
        bits = max(self.features.positional_bits, 1)
        epsilon = parameters.get("epsilon", self.epsilon)
        positional = traced(epsilon) or bool(np.any(epsilon))
        roles = ("q", "k", "v")
        xp = numpy_for(positions)
        biases = [xp.einsum("di,hai->dha", positions, self.features.positional[role]) / bits for role in roles]
        # Every pattern of positions repeats after L steps; traced ones may do so sooner.
        phases = self._context if traced(positions) else rotation_period(np.concatenate(biases, axis=1))
        return MeanFieldLanes(
            **values,
            signs=jnp.asarray(self.features.signs),
            weights=tuple(jnp.asarray(self.features.weights[role]) for role in roles),
            overlap_weights=jnp.asarray(self.features.weights["o"]),
            biases=tuple(jnp.asarray(bias) for bias in biases),
            positions=jnp.asarray(positions),
            phases=phases if positional else 1,
        )

    def start(self, lanes: Lanes, states: Sequence[Window]) -> WindowState:
        """Full windows side by side; all at the same positions."""
        assert isinstance(lanes, MeanFieldLanes)
        for state in states:
            self.check(state)
            known = not traced(state.positions, lanes.positions)
            if known and not np.array_equal(state.positions[::-1], lanes.positions):
                raise fail("state", "windows at different positions", "equal positions in all windows of one call")
        windows = [state.A[::-1] for state in states]
        return lanes.start(jnp.asarray(numpy_for(windows).stack(windows, axis=-1)))

    def state(self, lanes: Lanes, lane_state: WindowState, lane: int) -> Window:
        """The window of one lane."""
        assert isinstance(lanes, MeanFieldLanes)
        newest_first = (lane_state.slot - 1 - np.arange(self._context)) % self._context
        attention: Any = lane_state.attention
        positions: Any = lanes.positions
        if not traced(lane_state):
            attention, positions = np.asarray(attention), np.asarray(positions)
        return Window(attention[newest_first, :, lane], positions[newest_first])

    @property
    def _context(self) -> int:
        assert self.context is not None  # since __post_init__
        return self.context

    def check(self, state: Any) -> None:
        """Refuses what is not a window of this model."""
        if not isinstance(state, Window):
            raise fail("state", type(state).__name__, "a Window: model.window(...) or model.token(...)")
        shape = (self._context, self.features.features)
        if state.A.shape[1:] != shape[1:] or len(state.A) > shape[0] or len(state.positions) != shape[0]:
            got = f"a window with A {state.A.shape} and {len(state.positions)} positions"
            raise fail("state", got, f"a window of this model: context {shape[0]}, {shape[1]} features")
