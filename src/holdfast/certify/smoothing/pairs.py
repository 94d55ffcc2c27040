"""What is asked of a smoothed embedder, as pairs of frozen vectors, and how samples answer it in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from holdfast.certify.smoothing.confidence import mean_below, shares_below
from holdfast.certify.smoothing.radius import cdf_radius, half_space_radius, least_mean
from holdfast.errors import ConfigError

Array = NDArray[np.float64]
Form = Literal["cdf", "half-space"]
LEVELS = np.array([-6, -4.5, -3.5, -3, -2.5, -2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2, 2.5, 3])
"""Where the projection's distribution is looked at: standard deviations from the mean of the first samples."""
_PAIRS_AT_ONCE = 2**22


@dataclass(frozen=True)
class Pairs:
    """Row by row, "the first vector is nearer to g than the second" is ⟨g, direction⟩ > threshold."""

    directions: Array
    thresholds: Array

    @classmethod
    def of(cls, nearer: Array, farther: Array) -> Pairs:
        """Pairs of vectors; two that are equal are never told apart (their direction is zero)."""
        apart = np.asarray(nearer, dtype=np.float64) - farther
        length = np.linalg.norm(apart, axis=1, keepdims=True)
        scale = np.divide(1.0, length, out=np.zeros_like(length), where=length > 0)
        middle = (np.asarray(nearer, dtype=np.float64) + farther) / 2
        directions = apart * scale
        return cls(directions, np.einsum("ij,ij->i", directions, middle))

    @classmethod
    def joined(cls, parts: Sequence[Pairs]) -> Pairs:
        """The pairs of all parts, one after another."""
        return cls(
            np.concatenate([part.directions for part in parts]),
            np.concatenate([part.thresholds for part in parts]),
        )

    def __len__(self) -> int:
        return len(self.thresholds)


def class_pairs(mean: Array, same: Array, other: Array) -> Pairs:
    """For each vector of another class, the same-class vector that keeps it off best, as seen from `mean`.

    If every pair holds, the nearest vector is of the same class. The choice is made once, so `mean` must
    not come from the samples that answer.
    """
    if not len(same) or not len(other):
        raise ConfigError("a class is certified against others: both need a vector in the gallery")
    mean, same, other = (np.asarray(v, dtype=np.float64) for v in (mean, same, other))
    near = np.square(same - mean).sum(1)
    far = np.square(other - mean).sum(1)
    best = np.empty(len(other), dtype=np.int64)
    rows = max(1, _PAIRS_AT_ONCE // len(same))
    for start in range(0, len(other), rows):
        part = other[start : start + rows]
        gaps = (part**2).sum(1)[:, None] + (same**2).sum(1)[None] - 2 * part @ same.T
        margin = (far[start : start + rows, None] - near[None]) / np.sqrt(np.maximum(gaps, 1e-24))
        best[start : start + rows] = margin.argmax(1)
    return Pairs.of(same[best], other)


def candidate_pairs(candidate: Array, others: Array) -> Pairs:
    """One vector against each of the others: it is in the top k where at most k − 1 of them fail."""
    return Pairs.of(np.broadcast_to(candidate, np.shape(others)), others)


class Answers:
    """Counts, sample by sample, how the projections of all pairs are distributed; memory does not grow with n.

    `first` are samples that serve for nothing else: they place the levels.
    """

    def __init__(self, pairs: Pairs, first: Array, bound: float) -> None:
        self.pairs, self.bound, self.n = pairs, bound, 0
        seen = np.asarray(first, dtype=np.float64) @ pairs.directions.T
        spread = np.maximum(seen.std(0), 1e-6 * bound)
        self.levels = np.clip(seen.mean(0)[:, None] + spread[:, None] * LEVELS, -bound, bound)
        self._counts = np.zeros(self.levels.shape, dtype=np.int64)
        self._sum = np.zeros(len(pairs))

    def add(self, vectors: Array) -> None:
        """Samples h(x + z), a row each."""
        rows = max(1, _PAIRS_AT_ONCE // max(1, len(self.pairs)))
        for start in range(0, len(vectors), rows):
            seen = np.asarray(vectors[start : start + rows], dtype=np.float64) @ self.pairs.directions.T
            for i in range(self.levels.shape[1]):
                self._counts[:, i] += (seen >= self.levels[:, i]).sum(0)
            self._sum += seen.sum(0)
            self.n += len(seen)

    def radii(self, sigma: float, alpha: float, form: Form = "cdf") -> Array:
        """A radius for each pair, each wrong with probability at most α.

        `cdf`: the better of the distribution's radius and the half-space's, α/2 for each, so that it is
        never far below the latter; `half-space`: that alone. The printed form (Lemma 3.8 and Theorem 3.5 of
        RetrievalGuard) is never above either on the same samples and pair.
        """
        plain, shares = self._known(sigma, alpha, 1, form)
        if form == "half-space":
            return plain
        return np.maximum(plain, cdf_radius(self.levels, shares, self.pairs.thresholds, sigma, self.bound))

    def hold(self, radius: float, sigma: float, alpha: float, times: int = 1) -> NDArray[np.bool_]:
        """Which pairs have a radius above this one, which is much quicker to say than how large theirs is.

        With `times` above 1 it is what that many times the samples would say if they looked the same: a
        forecast, no certificate.
        """
        plain, shares = self._known(sigma, alpha, times, "cdf")
        rho = np.full(len(self.pairs), radius / sigma)
        mean = least_mean(self.levels, shares, self.bound)(rho)
        return np.asarray((plain > radius) | (mean > self.pairs.thresholds))

    def _known(self, sigma: float, alpha: float, times: int, form: Form) -> tuple[Array, Array]:
        """The half-space radii, and the lower bounds of P(X ≥ level); α is divided among them where both count."""
        n, share = self.n * times, alpha if form == "half-space" else alpha / 2
        mean = mean_below(self._sum / self.n, n, share, self.bound)
        plain = half_space_radius(mean, self.pairs.thresholds, sigma, self.bound)
        return plain, shares_below(self._counts * times, n, alpha / 2)

    def top_radius(self, k: int, sigma: float, alpha: float, form: Form = "cdf") -> float:
        """At most k − 1 pairs fail at x + δ for every ‖δ‖₂ below the result, with probability at least 1 − α.

        The k-th smallest radius, each at α/k: only the k pairs whose true radii are smallest can make it too
        large, whichever those are, so no union over the gallery is needed.
        """
        return float(kth(self.radii(sigma, alpha / k, form), k))


def kth(radii: Array, k: int) -> Array:
    """The k-th smallest radius of each row: below it at most k − 1 pairs fail. Infinite where there are fewer."""
    if k > radii.shape[-1]:
        return np.full(radii.shape[:-1], np.inf)
    return np.asarray(np.partition(radii, k - 1, axis=-1)[..., k - 1])
