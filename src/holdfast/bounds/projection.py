"""The least-norm move δ with Aδ ≥ b, inside a box or not: a move from above, duality from below.

For any λ ≥ 0 and every δ with Aδ ≥ b in the box [l, h]: ½‖δ‖² ≥ ½‖p‖² − fᵀp + bᵀλ with f = Aᵀλ and p = f clipped to
the box; without a box also ‖δ‖ ≥ (bᵀλ)/‖f‖. So a lower bound holds whatever the solver did.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

Array = NDArray[np.float64]
Worst = Callable[[Array], tuple[NDArray[np.int64], Array, Array]]
"""For a move: keys, unit rows of A, and b, of some constraints that it violates most; each key names one row."""
ROUNDS = 200
FIXINGS = 40
"""How often the set of features at the box's ends may change while one projection is sought."""
SAFE = 1 - 1e-11
"""Rounding of a dual value, with room to spare."""


@dataclass(frozen=True)
class Limits:
    """Where a point may move to, as the least and the largest move of every feature: low ≤ 0 ≤ high."""

    low: Array
    high: Array

    @classmethod
    def around(cls, point: Array, low: float, high: float) -> Limits:
        """[low, high] for every feature, and where the point itself is outside, up to there."""
        return cls(np.minimum(low - point, 0.0), np.maximum(high - point, 0.0))

    def clip(self, move: Array) -> Array:
        return np.clip(move, self.low, self.high)

    @property
    def reach(self) -> float:
        """No move in it is longer."""
        return float(np.linalg.norm(np.maximum(-self.low, self.high)))


@dataclass(frozen=True)
class Projection:
    """No move that satisfies the constraints is shorter than `lower` (infinite: there is none)."""

    lower: float
    move: Array | None
    """Satisfies those that were looked at, up to rounding; None if given up, or if there is none."""
    rows: Array
    needed: Array
    keys: NDArray[np.int64]

    def again(self, more: float, limits: Limits | None) -> Array | None:
        """The move for the same constraints when each asks for `more`."""
        _, move = project(self.rows, self.needed + more, limits)
        return move


def least_move(
    worst: Worst, features: int, enough: float = np.inf, limits: Limits | None = None
) -> Projection:
    """Project 0 onto the constraints that `worst` names, few at a time: few are ever tight.

    It is given up once the lower bound reaches `enough`.
    """
    rows, needed = np.empty((0, features)), np.empty(0)
    keys = np.empty(0, dtype=np.int64)
    move: Array | None = np.zeros(features)
    lower = 0.0
    for _ in range(ROUNDS):
        assert move is not None
        named, a, b = worst(move)
        new = (b - a @ move > 1e-12 * float(np.linalg.norm(move))) & ~np.isin(named, keys)
        if not new.any():
            break
        rows, needed = np.vstack([rows, a[new]]), np.concatenate([needed, b[new]])
        keys = np.concatenate([keys, named[new]])
        weights, move = project(rows, needed, limits)
        lower = max(lower, dual_value(rows, needed, weights, limits))
        if lower >= enough or move is None:
            return Projection(lower, None, rows, needed, keys)
    return Projection(lower, move, rows, needed, keys)


def dual_value(rows: Array, needed: Array, weights: Array, limits: Limits | None) -> float:
    """The lower bound of ‖δ‖ that multipliers `weights` ≥ 0 prove; infinite if they prove that there is no δ."""
    weights = np.maximum(weights, 0.0)
    rounding = 4 * (len(weights) + 1) * np.finfo(np.float64).eps
    force, asked = rows.T @ weights, float(needed @ weights)
    # What is left of sums that cancel: of Aᵀλ, whose rows have norm 1, and of bᵀλ.
    off = rounding * float(weights.sum())
    asked -= rounding * float(np.abs(needed) @ weights)
    pull = float(np.linalg.norm(force)) + off
    if asked <= 0:
        return 0.0
    value = asked / pull if pull > 0 else np.inf
    if limits is not None:
        reached = float(np.maximum(force * limits.low, force * limits.high).sum()) + off * limits.reach
        if asked * SAFE > reached:
            return np.inf
        inside = limits.clip(force)
        half = 0.5 * float(inside @ inside) - float(force @ inside) + asked - off * limits.reach
        size = float(force @ force) + asked
        value = max(value, np.sqrt(2 * max(0.0, half - 1e-14 * size)))
    return value * SAFE


def project(rows: Array, needed: Array, limits: Limits | None = None) -> tuple[Array, Array | None]:
    """The multipliers and the least-norm δ with `rows` δ ≥ `needed` in the box; None where none was found.

    With a box the features at its ends are guessed, the rest is projected, and the guess is mended by the
    multipliers' signs until it stays (a primal-dual active set).
    """
    weights, move = _unbounded(rows, needed)
    if limits is None or move is None:
        return weights, move
    below, above = np.zeros(len(move), dtype=bool), np.zeros(len(move), dtype=bool)
    force = move
    for _ in range(FIXINGS):
        under, over = force < limits.low, force > limits.high
        if np.array_equal(under, below) and np.array_equal(over, above):
            break
        below, above = under, over
        fixed = below | above
        held = np.where(below, limits.low, np.where(above, limits.high, 0.0))
        weights, part = _unbounded(rows[:, ~fixed], needed - rows @ held)
        if part is None:
            return weights, None
        force = rows.T @ weights
        move = held
        move[~fixed] = part
    return weights, limits.clip(move)


def _unbounded(rows: Array, needed: Array) -> tuple[Array, Array | None]:
    """Lawson and Hanson's LDP, by one NNLS: multipliers λ and δ = Aᵀλ.

    With E = [Aᵀ; bᵀ] and f = (0, …, 0, 1), let u ≥ 0 minimise ‖Eu − f‖ and r = Eu − f: δ = −r₁…ₙ / rₙ₊₁; no δ is
    there if r = 0, and then u itself proves it.
    """
    if not len(needed):  # Nothing is asked for; scipy's NNLS corrupts memory where it has no column.
        return np.zeros(0), np.zeros(rows.shape[1])
    scale = float(np.abs(needed).max(initial=0.0)) or 1.0
    system = np.vstack([rows.T, needed[None] / scale])
    target = np.zeros(len(system))
    target[-1] = 1.0
    try:
        weights, _ = nnls(system, target, maxiter=30 * max(10, len(needed)))
    except RuntimeError:  # Too many iterations: nothing is claimed.
        return np.zeros(len(needed)), None
    rest = system @ weights - target
    if rest[-1] > -1e-14:
        return weights, None
    return -weights * scale / rest[-1], np.asarray(-rest[:-1] / rest[-1] * scale)
