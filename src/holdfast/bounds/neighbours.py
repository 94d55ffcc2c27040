"""Labelled vectors under a Mahalanobis metric: distances, votes, and where two vectors are equally near.

d_M(x, y) = ‖G(x − y)‖², M = GᵀG. Certificates and attacks on nearest neighbours share this.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import ConfigError, DataError

Array = NDArray[np.float64]
Labels = NDArray[np.int64]
ROUNDING = 64 * np.finfo(np.float64).eps
"""Of a sum of squares, relative to it: more than float64 leaves uncertain in a few hundred features."""
LEAST = 2.0**-900
"""More than float64 leaves uncertain near zero, where what is below 2⁻¹⁰²² may be read as zero; also of roots."""
ROWS = 256
"""Vectors whose distances are computed together: their differences stay in the processor's cache."""
CLOSE = 1e-4
"""Below this share of ‖a‖² + ‖b‖² few digits of ‖a − b‖² are left: it is computed from the difference itself."""


class Neighbours:
    """Labelled training vectors under a metric, as certificates and attacks need them."""

    @np.errstate(over="ignore", invalid="ignore")  # What is not finite in the end is refused.
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
        # Distances do not see a shift; without one, rounding would grow with the distance from 0.
        self.centre: Array = self.vectors.mean(0) if len(self.vectors) else np.zeros(vectors.shape[1])
        away = self.vectors - self.centre
        self.z: Array = away @ self.transform.T
        """G(x − centre) of every vector."""
        self.u: Array = self.z @ self.transform
        """M(x − centre) of every vector."""
        terms, gain = max(self.transform.shape) + 2, absolute_norm(self.transform)
        self._unit = terms * np.finfo(np.float64).eps * gain
        self._widest = float(np.sqrt(np.square(away).sum(1).max(initial=0.0)))
        self._least = LEAST * (1 + gain)
        self.noise_u = 4 * self._unit * gain * self._widest + self._least * (1 + gain) * (1 + self._widest)
        """At least by how much M(x − y), from two rows of `u`, is off."""
        self.size: Array = np.einsum("ij,ij->i", self.u, self.u)
        """‖Mx‖² of every vector."""
        self.stretch = float(np.linalg.norm(self.transform, 2))
        """‖G‖₂: ‖M(x − y)‖ ≤ ‖G‖₂ ‖G(x − y)‖."""
        terms = 2 * (self.u.shape[1] + 4)
        self.apart_error = max(ROUNDING, terms * np.finfo(np.float64).eps) / CLOSE
        """At least the relative error of `apart`, whose terms may be 1 / CLOSE as large as it."""
        self.blur = max((1e4 * ROUNDING) ** 2 * float(self.size.max(initial=0.0)), LEAST / ROUNDING)
        """Squared distances of u below this are rounding: the metric does not tell the two vectors apart."""
        if self.stretch == 0:
            raise DataError("the metric is zero: every vector is as near as any other")
        if not np.isfinite([self.noise_u, self.size.max(initial=0.0)]).all():
            raise DataError(
                "the vectors under the metric are too large for numbers of 64 bits; scale them down"
            )

    def noise(self, point: Array) -> float:
        """At least by how much G(x − `point`) of any vector x is off, from how Gx and Gp were computed."""
        far = self._widest + float(np.linalg.norm(point - self.centre))
        return float(self._unit * far + self._least * (1 + far))

    def squared(self, point: Array, rows: Labels | None = None) -> Array:
        """d_M of every vector, or of some rows, to `point`; a row's value does not depend on the others."""
        z = self.z if rows is None else self.z[rows]
        found = np.empty(len(z))
        with np.errstate(over="ignore", invalid="ignore"):
            here = self.transform @ (point - self.centre)
            for first in range(0, len(z), ROWS):
                np.square(z[first : first + ROWS] - here).sum(1, out=found[first : first + ROWS])
        if not np.isfinite(found).all():
            raise DataError(
                "a point has no distance to the vectors: it contains NaN, or is infinitely far away"
            )
        return found

    def apart(self, ours: Labels, others: Labels) -> Array:
        """‖M(x − y)‖² for every x of `ours` (rows) and y of `others` (columns)."""
        one, other = self.u[ours], self.u[others]
        size = self.size[ours][:, None] + self.size[others]
        found = size - 2 * one @ other.T
        for i, j in zip(*np.nonzero(found < CLOSE * size), strict=True):
            found[i, j] = np.square(one[i] - other[j]).sum()
        return np.asarray(found)


def absolute_norm(matrix: Array) -> float:
    """At least the spectral norm of |A|: computed, Ax is off by at most that, times ‖x‖, times the rounding of a sum.

    It is at most the Frobenius norm, and at most √(‖A‖₁ ‖A‖∞), which is far less where A is nearly diagonal.
    """
    size = np.abs(matrix)
    largest = float(size.sum(0).max(initial=0.0)) * float(size.sum(1).max(initial=0.0))
    return min(float(np.linalg.norm(matrix)), math.sqrt(largest)) * (1 + ROUNDING)


def votes_needed(k: int) -> int:
    """s = (K + 1)/2: how many of K neighbours decide."""
    if k < 1 or k % 2 == 0:
        raise ConfigError(f"K is odd, so that two classes cannot tie; found {k}")
    return (k + 1) // 2


def pair_distances(squared: Array, known: Neighbours, noise: float, ours: Labels, others: Labels) -> Array:
    """ε̃ for every positive (row) and negative (column), rounded down; 0 where the metric does not tell them apart.

    ε̃ = [d_M(x, x⁻) − d_M(x, x⁺)]₊ / (2‖M(x⁺ − x⁻)‖₂): how far x is from where the two are equally near.
    `squared` and `noise` are those of x.
    """
    apart = known.apart(ours, others)
    told = apart > known.blur
    length = 2 * (np.sqrt(np.where(told, apart * (1 + known.apart_error), 0.0)) + known.noise_u)
    gap = np.maximum(gaps(squared[others], squared[ours][:, None], noise), 0.0)
    return np.asarray(np.divide(gap, length, out=np.zeros_like(gap), where=told & (length > 0)))


def gaps(far: Array | float, near: Array, noise: float) -> Array:
    """d⁻ − d⁺, rounded down by all that their computation leaves uncertain."""
    unsure = 2 * noise * (np.sqrt(far) + np.sqrt(near)) + 2 * noise**2
    return np.asarray(far - near - ROUNDING * (far + near) - unsure - LEAST)


def nearest_label(point: Array, known: Neighbours, k: int = 1) -> Labels:
    """The labels of the k nearest, nearest first."""
    return np.asarray(known.labels[np.argsort(known.squared(point), kind="stable")[:k]])


def outvoted(squared: Array, labels: Labels, label: int, k: int = 1) -> int | None:
    """A class with at least as many of the K nearest as `label`; None if there is none.

    Ties count for the other class: of vectors at the K-th distance those are taken that serve it best.
    """
    if k >= len(squared):
        inside, edge, places = labels, labels[:0], 0
    else:
        last = np.partition(squared, k - 1)[k - 1]
        inside, edge = labels[squared < last], labels[squared == last]
        places = k - len(inside)
    classes, sure = np.unique(np.concatenate([inside, edge]), return_counts=True)
    tied = np.array([(edge == c).sum() for c in classes])
    sure = sure - tied
    own = classes == label
    mine, mine_tied = int(sure[own].sum()), int(tied[own].sum())
    best: tuple[int, int] | None = None
    for c, votes, more in zip(classes[~own], sure[~own], tied[~own], strict=True):
        left = places - min(places, int(more))
        elsewhere = len(edge) - mine_tied - int(more)
        lead = int(votes) + min(places, int(more)) - mine - max(0, left - elsewhere)
        if lead >= 0 and (best is None or lead > best[0]):
            best = lead, int(c)
    return None if best is None else best[1]
