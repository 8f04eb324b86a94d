"""The theory of attention paths on the heads of a pretrained model (transformers; learning §3).

Each head is a path whose features are its contribution ξ to the residual stream at the readout. With one order
parameter U = RRᵀ for all D outputs,

    S = D ln det(K + τI) + tr[Yᵀ(K + τI)⁻¹Y] + N(‖R‖² − 2 Σ ln diag R) ,   K = Σ U_ππ' ξ_π·ξ_π' .

A head's contribution lies in the few dimensions of its output projection: ξ_π = z_π B_π. With Z = [z_1 ... z_n] and the
blocks H_ππ' = B_π B_π'ᵀ, K = Z (U ∘ H) Zᵀ, so that the width of the residual stream does not
enter the cost of a step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.optimize
import torch

from .._validation import fail, positive_number, real_array

# Directions of a head's contribution that hold less than this share of its square are rounding of float32.
_ROUNDING = 1e-12


@dataclass(frozen=True, eq=False)
class PathTheory:
    """The order parameter that learning fits to labels, one path per head.

    Fields:
        order_parameter: U [path, path].
        action: S.
        converged: whether S stopped falling, or its slope vanished, within the steps; `message` says which.
        evaluations: of S and its slope.
    """

    order_parameter: np.ndarray
    action: float
    converged: bool
    message: str
    evaluations: int


def path_theory(
    contributions: Any,
    targets: Any,
    *,
    width: float = 20.0,
    temperature: float = 0.05,
    max_steps: int = 500,
    device: torch.device | str | None = None,
) -> PathTheory:
    """The order parameter U of the heads of a model, at the minimum of the action.

    Arguments:
        contributions: ξ [example, path, feature]; their mean over examples is taken off, and they are scaled so that
            the kernel of U = I has a mean diagonal of 1.
        targets: Y [example, output], centred.
        width: N; small, so that the labels speak.
        temperature: τ.

    Example:
        >>> generator = np.random.default_rng(0)
        >>> contributions = generator.normal(size=(60, 3, 4))
        >>> found = path_theory(contributions, np.sign(contributions[:, 1, :1]))
        >>> int(np.argmax(np.diag(found.order_parameter)))
        1
    """
    xi = real_array("contributions", contributions, ("example", "path", "feature"))
    y = real_array("targets", targets, ("example", "output"))
    if len(y) != len(xi):
        raise fail("targets", f"{len(y)} rows", f"{len(xi)}, one per example")
    positive_number("width", width)
    positive_number("temperature", temperature)
    action = _Action(xi, y, float(width), float(temperature), device)

    def value_and_slope(vector: np.ndarray) -> tuple[float, np.ndarray]:
        free = torch.from_numpy(vector).to(device).requires_grad_()
        value = action.at(action.factor(free))
        (slope,) = torch.autograd.grad(value, free)
        return float(value.detach()), slope.cpu().numpy()

    found = scipy.optimize.minimize(
        value_and_slope,
        np.zeros(action.paths * (action.paths + 1) // 2),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": max_steps, "ftol": 1e-10, "gtol": 1e-5 * width, "maxcor": 20},
    )
    factor = action.factor(torch.from_numpy(found.x)).numpy()
    return PathTheory(factor @ factor.T, float(found.fun), bool(found.success), str(found.message), int(found.nfev))


class _Action:
    """S as a function of R, with Z, H and the labels at hand."""

    def __init__(self, xi: np.ndarray, y: np.ndarray, width: float, temperature: float, device: Any) -> None:
        self.width, self.temperature, self.paths = width, temperature, xi.shape[1]
        features = torch.from_numpy(xi - xi.mean(axis=0)).to(device)
        self.targets = torch.from_numpy(y).to(device)
        features = features / torch.sqrt((features**2).sum() / len(features)).clamp(min=1e-300)
        rows, bases = [], []
        for path in range(self.paths):
            values, vectors = torch.linalg.eigh(features[:, path].T @ features[:, path])
            basis = vectors[:, values > _ROUNDING * values.max().clamp(min=1e-300)].T
            rows.append(features[:, path] @ basis.T)
            bases.append(basis)
        self.rows = torch.cat(rows, dim=1)
        basis = torch.cat(bases)
        self.blocks = basis @ basis.T
        self.path_of = torch.cat([torch.full((len(one),), path) for path, one in enumerate(bases)]).to(device)

    def factor(self, vector: torch.Tensor) -> torch.Tensor:
        """R from its entries, row by row; those of the diagonal are logarithms."""
        empty = vector.new_zeros(self.paths, self.paths)
        packed = empty.index_put(tuple(torch.tril_indices(self.paths, self.paths)), vector)
        return packed.tril(-1) + packed.diagonal().exp().diag()

    def at(self, factor: torch.Tensor) -> torch.Tensor:
        """S at a lower-triangular R."""
        order = (factor @ factor.T).index_select(0, self.path_of).index_select(1, self.path_of)
        covariance = self.rows @ (order * self.blocks) @ self.rows.T
        root = torch.linalg.cholesky(covariance + self.temperature * torch.eye(len(covariance)).to(order))
        solved = torch.cholesky_solve(self.targets, root)
        energy = 2 * self.targets.shape[1] * root.diagonal().log().sum() + (self.targets * solved).sum()
        return energy + self.width * ((factor**2).sum() - 2 * factor.diagonal().log().sum())
