"""How far a feature vector may move, in ℓ2, before its K nearest neighbours under a Mahalanobis metric outvote it.

d_M(x, y) = ‖G(x − y)‖², M = GᵀG. For a positive x⁺ (of the point's class) and a negative x⁻, x is exactly
ε̃ = [d_M(x, x⁻) − d_M(x, x⁺)]₊ / (2‖M(x⁺ − x⁻)‖₂) away from where the two are equally near. With s = (K + 1)/2, a
wrong majority needs s negatives that each come before all but s − 1 positives, so nothing closer than the s-th
smallest over negatives of the s-th largest over positives of ε̃ does it (ARML, Theorem 1 and Eq. 10). Any part
of the positives gives a smaller, still sound number. These are statements about feature vectors, not pixels.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import ConfigError, DataError

Array = NDArray[np.float64]
Labels = NDArray[np.int64]
BLOCK = 256
"""Negatives looked at together; the nearest come first."""
QUICK = 16
"""Positives, the nearest, that give a first bound for every negative of a block."""
ROUNDING = 64 * np.finfo(np.float64).eps
"""Of a sum of squares, relative to it: more than float64 leaves uncertain in a few hundred features."""


class Neighbours:
    """Labelled training vectors under a metric, as certificates need them."""

    def __init__(self, vectors: Array, labels: Labels, transform: Array) -> None:
        if vectors.ndim != 2 or transform.ndim != 2 or vectors.shape[1] != transform.shape[1]:
            raise DataError(
                f"a metric of {transform.shape[-1]} features does not fit vectors of {vectors.shape[-1]}"
            )
        if len(labels) != len(vectors):
            raise DataError(f"{len(vectors)} vectors need as many labels, found {len(labels)}")
        if not (np.isfinite(vectors).all() and np.isfinite(transform).all()):
            raise DataError("the vectors or the metric contain NaN or infinity")
        self.vectors, self.labels = np.asarray(vectors, dtype=np.float64), np.asarray(labels)
        self.transform = np.asarray(transform, dtype=np.float64)
        self.z: Array = self.vectors @ self.transform.T
        """Gx of every vector."""
        self.u: Array = self.z @ self.transform
        """Mx of every vector."""
        self.stretch = float(np.linalg.norm(self.transform, 2))
        """‖G‖₂: ‖M(x − y)‖ ≤ ‖G‖₂ ‖G(x − y)‖."""
        largest = float(np.square(self.u).sum(1).max(initial=0.0))
        self.blur = (1e4 * ROUNDING) ** 2 * largest
        """Squared distances of u below this are rounding: the metric does not tell the two vectors apart."""
        if self.stretch == 0:
            raise DataError("the metric is zero: every vector is as near as any other")

    def squared(self, point: Array) -> Array:
        """d_M of every vector to `point`."""
        return np.asarray(np.square(self.z - self.transform @ point).sum(1))


def votes_needed(k: int) -> int:
    """s = (K + 1)/2: how many of K neighbours decide."""
    if k < 1 or k % 2 == 0:
        raise ConfigError(f"K is odd, so that two classes cannot tie; found {k}")
    return (k + 1) // 2


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
    reach = np.sqrt(squared[ours[s - 1]])
    best = np.full(s, np.inf)
    for first in range(0, len(others), BLOCK):
        block = others[first : first + BLOCK]
        # ε̃ ≥ (√d⁻ − √d⁺)/(2‖G‖): from here on no negative can lower the result.
        if (np.sqrt(squared[block[0]]) - reach) / (2 * known.stretch) >= best[-1]:
            break
        quick = _sth_largest(squared, known, ours[: max(QUICK, s)], block, s)
        open_ = block[quick < best[-1]]
        values = (
            _sth_largest(squared, known, ours, open_, s)
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


def pair_distances(squared: Array, known: Neighbours, ours: Labels, others: Labels) -> Array:
    """ε̃ for every positive (row) and negative (column), rounded down; 0 where the metric does not tell them apart."""
    one, other = known.u[ours], known.u[others]
    size = (one**2).sum(1)[:, None] + (other**2).sum(1)
    apart = size - 2 * one @ other.T
    for i, j in zip(
        *np.nonzero(apart < 1e-4 * size), strict=True
    ):  # Few digits are left: by the difference itself.
        apart[i, j] = np.square(one[i] - other[j]).sum()
    length = 2 * np.sqrt(np.where(apart > known.blur, apart * (1 + 1e4 * ROUNDING), 0.0))
    far, near = squared[others], squared[ours][:, None]
    gap = np.maximum(far - near - ROUNDING * (far + near), 0.0)
    return np.asarray(np.divide(gap, length, out=np.zeros_like(gap), where=length > 0))


def _sth_largest(squared: Array, known: Neighbours, ours: Labels, others: Labels, s: int) -> Array:
    if not len(others):
        return np.empty(0)
    found = pair_distances(squared, known, ours, others)
    return np.asarray(np.partition(found, len(ours) - s, axis=0)[len(ours) - s])
