"""How far a feature vector may move, in ℓ2, before its K nearest neighbours under a Mahalanobis metric outvote it.

d_M(x, y) = ‖G(x − y)‖², M = GᵀG. For a positive x⁺ (of the point's class) and a negative x⁻, x is exactly
ε̃ = [d_M(x, x⁻) − d_M(x, x⁺)]₊ / (2‖M(x⁺ − x⁻)‖₂) away from where the two are equally near. With s = (K + 1)/2, a
wrong majority needs s negatives that each come before all but s − 1 positives, so nothing closer than the s-th
smallest over negatives of the s-th largest over positives of ε̃ does it (ARML, Theorem 1 and Eq. 10). Any part
of the positives gives a smaller, still sound number. These are statements about feature vectors, not pixels.
"""

from __future__ import annotations

import numpy as np

from holdfast.bounds.neighbours import Array, Labels, Neighbours, pair_distances, votes_needed

BLOCK = 256
"""Negatives looked at together; the nearest come first."""
QUICK = 16
"""Positives, the nearest, that give a first bound for every negative of a block."""


def knn_radius(
    point: Array, label: int, known: Neighbours, k: int = 1, positives: int | None = None
) -> float:
    """The radius of one point; 0 where it is not certified at all, infinite where it has too few negatives.

    `positives`: use only that many of the nearest ones, which is quicker and never too large.
    """
    s = votes_needed(k)
    squared = known.squared(point)
    same = known.labels == label
    ours, others = np.flatnonzero(same), np.flatnonzero(~same)
    if len(ours) < s:
        return 0.0
    if len(others) < s:
        return np.inf
    most = None if positives is None else max(positives, s)
    ours = ours[np.argsort(squared[ours], kind="stable")][:most]
    others = others[np.argsort(squared[others], kind="stable")]
    noise = known.noise(point)
    reach = np.sqrt(squared[ours[s - 1]]) + 2 * noise
    best = np.full(s, np.inf)
    for first in range(0, len(others), BLOCK):
        block = others[first : first + BLOCK]
        # ε̃ ≥ (√d⁻ − √d⁺)/(2‖G‖): from here on no negative can lower the result.
        if (np.sqrt(squared[block[0]]) - reach) / (2 * known.stretch) * (1 - 1e-12) >= best[-1]:
            break
        quick = _sth_largest(squared, known, noise, ours[: max(QUICK, s)], block, s)
        open_ = block[quick < best[-1]]
        values = (
            _sth_largest(squared, known, noise, ours, open_, s)
            if len(ours) > max(QUICK, s)
            else quick[quick < best[-1]]
        )
        best = np.sort(np.concatenate([best, values]))[:s]
        if best[-1] == 0:
            break
    return float(best[-1])


def knn_radii(
    points: Array, labels: Labels, known: Neighbours, k: int = 1, positives: int | None = None
) -> Array:
    """`knn_radius` of every point."""
    return np.array([knn_radius(x, int(y), known, k, positives) for x, y in zip(points, labels, strict=True)])


def _sth_largest(
    squared: Array, known: Neighbours, noise: float, ours: Labels, others: Labels, s: int
) -> Array:
    if not len(others):
        return np.empty(0)
    found = pair_distances(squared, known, noise, ours, others)
    return np.asarray(np.partition(found, len(ours) - s, axis=0)[len(ours) - s])
