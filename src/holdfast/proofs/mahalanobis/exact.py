"""The smallest move that changes a point's nearest neighbour's class, exactly: a dual bound and a primal attack.

For a negative x⁻ the point must come no farther from x⁻ than from every positive: a least-norm problem with linear
constraints (ARML, Eq. 13). Its answer over all negatives is the smallest; negatives are tried in the order of a
lower bound, and most never are. By weak duality any λ ≥ 0 gives a lower bound (`bounds.projection`), which is a
certificate whatever the solver did; the primal point is an attack, and is tried. "Exact" is said only where the two
meet. With `limits`, moves that leave them are not the attacker's, and both ends are of the others only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from holdfast.bounds.neighbours import (
    CLOSE,
    Array,
    Labels,
    Neighbours,
    gaps,
    nearest_label,
    outvoted,
    pair_distances,
)
from holdfast.bounds.projection import Limits, Projection, least_move

FEW = 8
"""Constraints to add at once, and positives that give a first bound for every negative."""
BLOCK = 256
"""Negatives looked at together; the nearest come first."""
BEYOND = (1e-12, 1e-11, 1e-10, 1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4)
"""How far beyond the boundary, relative to its length, an attack may have to go for rounding's sake."""

__all__ = ["Exact", "exact_radius", "flips", "nearest_label"]


@dataclass(frozen=True)
class Exact:
    """What is known of one point: no move shorter than `lower` changes its nearest neighbour's class, `move` does.

    `lower` holds for the numbers as they are; that `move` does it is as float64 computes the distances.
    """

    lower: float
    upper: float
    """The length of `move`; infinite if none was found, or if there is none."""
    move: Array
    solved: int
    """Negatives whose problem was solved."""

    @property
    def gap(self) -> float:
        """By which share of it the two ends differ: 1 where no move was found; 0 where nothing is to be found."""
        if self.upper == self.lower:
            return 0.0
        return 1.0 if self.upper == np.inf else (self.upper - self.lower) / self.upper


def exact_radius(point: Array, label: int, known: Neighbours, limits: Limits | None = None) -> Exact:
    """The smallest ℓ2 move, within `limits`, after which a negative is at least as near as every positive."""
    squared = known.squared(point)
    same = known.labels == label
    ours, others = np.flatnonzero(same), np.flatnonzero(~same)
    still = np.zeros_like(point)
    if not len(others):
        return Exact(np.inf, np.inf, still, 0)
    if not len(ours) or squared[others].min() <= squared[ours].min():
        return Exact(0.0, 0.0, still, 0)
    ours = ours[np.argsort(squared[ours], kind="stable")]
    others = others[np.argsort(squared[others], kind="stable")]
    positives, noise = _Positives(known, squared, ours), known.noise(point)
    nearest = np.sqrt(squared[ours[0]]) + 2 * noise
    lower, upper, move, solved = np.inf, np.inf, still, 0
    for first in range(0, len(others), BLOCK):
        block = others[first : first + BLOCK]
        # No move for a negative is shorter than (√d⁻ − √d⁺)/(2‖G‖): from here on none can lower the result.
        if (np.sqrt(squared[block[0]]) - nearest) / (2 * known.stretch) * (1 - 1e-12) >= upper:
            break
        # Nor than its largest single constraint.
        quick = pair_distances(squared, known, noise, ours[:FEW], block).max(0)
        for place in np.argsort(quick, kind="stable"):
            if quick[place] >= upper:
                break
            low, found = _least_move(point, positives, int(block[place]), upper, limits)
            solved += 1
            lower = min(lower, max(low, float(quick[place])))
            length = float(np.linalg.norm(found)) if found is not None else np.inf
            if found is not None and length < upper:
                upper, move = length, found
    # By weak duality it never is above the move; if it were, the certificate would be wrong, and that is to be seen.
    return Exact(max(0.0, lower if lower > upper * (1 + 1e-9) else min(lower, upper)), upper, move, solved)


class _Positives:
    """The vectors of the point's class, as every negative's problem needs them."""

    def __init__(self, known: Neighbours, squared: Array, ours: Labels) -> None:
        self.known, self.squared, self.ours = known, squared, ours
        self.u, self.size = known.u[ours], known.size[ours]


def _least_move(
    point: Array, positives: _Positives, other: int, enough: float, limits: Limits | None
) -> tuple[float, Array | None]:
    """A lower bound of the move for one negative, and the move itself; None once the bound is above `enough`.

    Constraints aᵢᵀδ ≥ bᵢ, aᵢ = 2M(x⁻ − xᵢ⁺), bᵢ = d(x, x⁻) − d(x, xᵢ⁺), scaled to ‖aᵢ‖ = 1.
    """
    known, squared, ours = positives.known, positives.squared, positives.ours
    there = known.u[other]
    size = positives.size + known.size[other]
    apart = size - 2 * positives.u @ there
    for i in np.flatnonzero(apart < CLOSE * size):
        apart[i] = np.square(positives.u[i] - there).sum()
    # A positive that the metric does not tell from the negative ties with it everywhere: nothing is asked for.
    useful = apart > known.blur
    if not useful.any():
        none = np.zeros_like(point)
        return 0.0, none if _as_near(point, positives, other) else None
    length = 2 * np.sqrt(np.where(useful, apart, 1.0))
    # Rounded down, so that no bound is above what is true; the move is tried by itself. The rows are off by
    # 2 `noise_u` each, which matters by as much as the move is long: no longer than to the negative itself, or
    # than `enough`, beyond which nothing is claimed.
    full = gaps(float(squared[other]), squared[ours], known.noise(point))
    whole = float(np.linalg.norm(known.vectors[other] - point)) if limits is None else limits.reach
    whole *= 1 + 1e-9
    longest = min(whole, enough)
    needed = full - 2 * known.noise_u * longest

    def worst(move: Array) -> tuple[Labels, Array, Array]:
        short = (needed - 2 * (there @ move - positives.u @ move)) / length
        short[~useful] = -np.inf
        most = min(FEW, int(useful.sum()))
        chosen = np.argpartition(-short, most - 1)[:most]
        rows = 2 * (there - positives.u[chosen])
        own = np.linalg.norm(rows, axis=1)
        return chosen, rows / own[:, None], needed[chosen] / own

    found = least_move(worst, len(point), enough, limits)
    move = _tried(point, positives, other, found, limits)
    if move is None and found.move is not None:
        # What is rounded down may be too little to flip anything, under metrics that stretch very unevenly.
        needed = squared[other] - squared[ours]
        move = _tried(point, positives, other, least_move(worst, len(point), enough, limits), limits)
    size = np.inf if move is None else float(np.linalg.norm(move))
    if found.lower < size * (1 - 1e-7) and size < longest:
        needed = full - 2 * known.noise_u * size
        found, longest = least_move(worst, len(point), enough, limits), whole
    return found.lower if longest == whole else min(found.lower, longest), move


def _tried(
    point: Array, positives: _Positives, other: int, found: Projection, limits: Limits | None
) -> Array | None:
    """The move, asked for a little more until rounding leaves the negative as near as every positive."""
    if found.move is None:
        return None
    size = float(np.linalg.norm(found.move))

    def flipped(beyond: float) -> Array | None:
        moved = found.again(beyond * size, limits) if beyond else found.move
        return moved if moved is not None and _as_near(point + moved, positives, other) else None

    if (moved := flipped(0.0)) is not None:
        return moved
    # From far to near, because most of what flips nothing there flips nothing at all; a thin cell has no room for more.
    for place in (8, 5, 2):
        if (there := flipped(BEYOND[place])) is not None:
            nearer = (flipped(beyond) for beyond in BEYOND[:place])
            return next((moved for moved in nearer if moved is not None), there)
    return None


def _as_near(point: Array, positives: _Positives, other: int) -> bool:
    """Whether the negative is as near to `point` as every positive."""
    squared = positives.known.squared(point, np.concatenate([[other], positives.ours]))
    return bool(squared[0] <= squared[1:].min())


def flips(point: Array, move: Array, label: int, known: Neighbours) -> bool:
    """Whether the moved point's nearest neighbour, ties included, is no longer of its class only."""
    return outvoted(known.squared(point + move), known.labels, label) is not None
