"""The smallest move that changes a point's nearest neighbour's class, exactly: a dual bound and a primal attack.

For a negative x⁻ the point must come no farther from x⁻ than from every positive: a least-norm problem with linear
constraints (ARML, Eq. 13). Its answer over all negatives is the smallest; negatives are tried in the order of a
lower bound, and most never are. Constraints are added as they are violated, since few are ever tight. By weak
duality any λ ≥ 0 gives a lower bound, (bᵀλ)/‖Aᵀλ‖, which is a certificate whatever the solver did; the primal point
is an attack, and is tried. "Exact" is said only where the two meet.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from holdfast.certify.mahalanobis.bound import ROUNDING, Array, Labels, Neighbours, pair_distances

FEW = 8
"""Constraints to begin with, and to add at once."""
ROUNDS = 100
BEYOND = (0.0, 1e-12, 1e-11, 1e-10, 1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4)
"""How far beyond the boundary, relative to its length, an attack may have to go for rounding's sake."""


@dataclass(frozen=True)
class Exact:
    """What is known of one point: no move shorter than `lower` changes its nearest neighbour's class, `move` does."""

    lower: float
    upper: float
    """The length of `move`; infinite if there is no negative."""
    move: Array
    solved: int
    """Negatives whose problem was solved."""

    @property
    def gap(self) -> float:
        """By which share of it the two ends differ: 1 where no move was found; 0 where nothing is to be found."""
        if self.upper == self.lower:
            return 0.0
        return 1.0 if self.upper == np.inf else (self.upper - self.lower) / self.upper


def exact_radius(point: Array, label: int, known: Neighbours) -> Exact:
    """The smallest ℓ2 move after which a negative is at least as near as every positive."""
    squared = known.squared(point)
    same = known.labels == label
    ours, others = np.flatnonzero(same), np.flatnonzero(~same)
    still = np.zeros_like(point)
    if not len(others):
        return Exact(np.inf, np.inf, still, 0)
    if not len(ours) or squared[others].min() <= squared[ours].min():
        return Exact(0.0, 0.0, still, 0)
    ours = ours[np.argsort(squared[ours], kind="stable")]
    # The largest single constraint of each negative: no move for it is shorter.
    quick = pair_distances(squared, known, ours[:FEW], others).max(0)
    lower, upper, move, solved = np.inf, np.inf, still, 0
    for place in np.argsort(quick, kind="stable"):
        if quick[place] >= upper:
            lower = min(lower, float(quick[place]))
            break
        low, found = _least_move(point, squared, known, ours, int(others[place]), upper)
        solved += 1
        lower = min(lower, low)
        length = float(np.linalg.norm(found)) if found is not None else np.inf
        if found is not None and length < upper:
            upper, move = length, found
    return Exact(max(0.0, min(lower, upper)), upper, move, solved)


def _least_move(
    point: Array, squared: Array, known: Neighbours, ours: Labels, other: int, enough: float
) -> tuple[float, Array | None]:
    """A lower bound of the move for one negative, and the move itself; None once the bound is above `enough`.

    Constraints aᵢᵀδ ≥ bᵢ, aᵢ = 2M(x⁻ − xᵢ⁺), bᵢ = d(x, x⁻) − d(x, xᵢ⁺), scaled to ‖aᵢ‖ = 1.
    """
    apart = 2 * (known.u[other] - known.u[ours])
    # Rounded down, so that no bound is above what is true; the move is tried by itself.
    needed = squared[other] - squared[ours] - ROUNDING * (squared[other] + squared[ours])
    length = np.linalg.norm(apart, axis=1)
    # A positive that the metric does not tell from the negative ties with it everywhere: nothing is asked for.
    useful = length**2 > 4 * known.blur
    if not useful.any():
        return 0.0, np.zeros_like(point)
    apart, needed = apart[useful] / length[useful][:, None], needed[useful] / length[useful]
    active = np.argsort(-needed, kind="stable")[:FEW]
    lower, move = 0.0, None
    for _ in range(ROUNDS):
        weights, move = _project(apart[active], needed[active])
        force = apart[active].T @ weights
        pull = float(np.linalg.norm(force))
        if pull > 0:
            lower = max(lower, float(needed[active] @ weights) / pull)
        if lower >= enough or move is None:
            return lower, None
        short = needed - apart @ move
        worst = np.argsort(-short, kind="stable")[:FEW]
        size = max(float(np.linalg.norm(move)), 1e-300)
        new = np.setdiff1d(worst[short[worst] > 1e-12 * size], active)
        if not len(new):
            break
        active = np.concatenate([active, new])
    assert move is not None
    # Asked for a little more, until rounding leaves every constraint true and the neighbour is really another.
    label, size = int(known.labels[ours[0]]), float(np.linalg.norm(move))
    for beyond in BEYOND:
        _, moved = _project(apart[active], needed[active] + beyond * size)
        if moved is not None and flips(point, moved, label, known):
            return lower, moved
    return lower, None


def _project(apart: Array, needed: Array) -> tuple[Array, Array | None]:
    """The least-norm δ with `apart` δ ≥ `needed`, and the multipliers: Lawson and Hanson's LDP, by one NNLS.

    With E = [Aᵀ; bᵀ] and f = (0, …, 0, 1), let u ≥ 0 minimise ‖Eu − f‖ and r = Eu − f: δ = −r₁…ₙ / rₙ₊₁; no δ is
    there if r = 0.
    """
    scale = float(np.abs(needed).max(initial=0.0)) or 1.0
    system = np.vstack([apart.T, needed[None] / scale])
    target = np.zeros(len(system))
    target[-1] = 1.0
    weights, _ = nnls(system, target, maxiter=30 * max(10, len(needed)))
    rest = system @ weights - target
    if abs(rest[-1]) < 1e-14:
        return weights, None
    return weights, np.asarray(-rest[:-1] / rest[-1] * scale)


def flips(point: Array, move: Array, label: int, known: Neighbours) -> bool:
    """Whether the moved point's nearest neighbour, ties included, is no longer of its class only."""
    squared = known.squared(point + move)
    same = known.labels == label
    return bool(squared[~same].min(initial=np.inf) <= squared[same].min(initial=np.inf))


def nearest_label(point: Array, known: Neighbours, k: int = 1) -> NDArray[np.int64]:
    """The labels of the k nearest, nearest first."""
    return np.asarray(known.labels[np.argsort(known.squared(point), kind="stable")[:k]])
