"""What is asked of a smoothed embedder, as pairs of frozen vectors, and how samples answer it in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import ConfigError
from holdfast.proofs.smoothing.betting import FARTHEST, GRID, STEP, Bets, knots_of
from holdfast.proofs.smoothing.confidence import ball, mean_below
from holdfast.proofs.smoothing.kernels import share_out
from holdfast.proofs.smoothing.radius import half_space_radius

Array = NDArray[np.float64]
Form = Literal["cdf", "half-space", "ball"]
PLAIN = 0.05
"""The share of α that goes to the half-space form, which is seldom the better one."""
HALVINGS = 32
"""From `FARTHEST` down to 1e-8 σ."""
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
    """Takes in, sample by sample, how the projections of all pairs are distributed; memory does not grow with n.

    `first` are samples that serve for nothing else: they place the knots, and with them the bets.
    """

    def __init__(self, pairs: Pairs, first: Array, bound: float) -> None:
        self.pairs, self.bound, self.n = pairs, bound, 0
        seen = np.asarray(first, dtype=np.float64) @ pairs.directions.T
        mean, spread = seen.mean(0), np.maximum(seen.std(0), 1e-6 * bound)
        self._low, self._step = mean + GRID[0] * spread, STEP * spread
        self.knots = knots_of(mean, spread, bound)
        self.shared = np.zeros_like(self.knots)
        """How much of the samples fell to each knot."""
        self._sum = np.zeros(len(pairs))

    def add(self, vectors: Array) -> None:
        """Samples h(x + z), a row each."""
        rows = max(1, _PAIRS_AT_ONCE // max(1, len(self.pairs)))
        for start in range(0, len(vectors), rows):
            seen = np.asarray(vectors[start : start + rows], dtype=np.float64) @ self.pairs.directions.T
            share_out(seen, self._low, self._step, self.bound, self.shared)
            self._sum += seen.sum(0)
            self.n += len(seen)

    def radii(self, sigma: float, alpha: float, form: Form = "cdf") -> Array:
        """A radius for each pair, each wrong with probability at most α.

        `cdf`: the better of the bet's radius and the half-space's, each with its share of α; `half-space`: that
        alone; `ball`: that with one ball around the mean vector for its confidence, which is right for all pairs
        together. The printed form (Lemma 3.8 and Theorem 3.5 of RetrievalGuard) is never above any of them on the
        same samples and pair.
        """
        plain = self._plain(sigma, alpha, form)
        if form != "cdf":
            return plain
        return np.maximum(plain, self.kth_radii(np.arange(len(self.pairs)), 1, sigma, alpha))

    def hold(self, radius: float, sigma: float, alpha: float, times: int = 1) -> NDArray[np.bool_]:
        """Which pairs have a radius above this one, which is much quicker to say than how large theirs is.

        With `times` above 1 it is what that many times the samples would say if they looked the same: a
        forecast, no certificate.
        """
        won = self._bets(alpha, slice(None), times).won(np.full(len(self.pairs), radius / sigma))
        return np.asarray(won | (self._plain(sigma, alpha, "cdf", times) > radius))

    def _plain(self, sigma: float, alpha: float, form: Form, times: int = 1) -> Array:
        """The half-space radii, with all of α or, where there are bets too, with their share."""
        mean, n = self._sum / self.n, self.n * times
        if form == "ball":
            mean = mean - ball(n, alpha, self.bound)
        else:
            mean = mean_below(mean, n, PLAIN * alpha if form == "cdf" else alpha, self.bound)
        return half_space_radius(mean, self.pairs.thresholds, sigma, self.bound)

    def _bets(self, alpha: float, asked: NDArray[np.bool_] | slice, times: int = 1) -> Bets:
        """The bets of some pairs, with the rest of α."""
        known = (self.knots[asked], self.shared[asked], self.pairs.thresholds[asked])
        return Bets.placed(*known, self.n, (1 - PLAIN) * alpha, times)

    def top_radius(self, k: int, sigma: float, alpha: float, form: Form = "cdf") -> float:
        """At most k − 1 pairs fail at x + δ for every ‖δ‖₂ below the result, with probability at least 1 − α.

        The k-th smallest radius, each at α/k: only the k pairs whose true radii are smallest can make it too
        large, whichever those are, so no union over the gallery is needed.
        """
        one, none = np.zeros(len(self.pairs), dtype=np.int64), np.empty((1, 0))
        return float(self.kth_radii(one, k, sigma, alpha / k, form, none)[0])

    def kth_radii(
        self,
        groups: NDArray[np.int64],
        k: int,
        sigma: float,
        alpha: float,
        form: Form = "cdf",
        others: Array | None = None,
    ) -> Array:
        """The k-th smallest radius of each group of pairs, each pair's at α; infinite where there are fewer.

        `groups` gives each pair its group, or −1 to leave it out; `others` has a row of further radii for each
        group. Pairs that cannot be the k-th any more are dropped on the way, so it costs a few looks at each.
        """
        plain = self._plain(sigma, alpha, form)
        count = int(groups.max(initial=-1)) + 1 if others is None else len(others)
        further = np.empty((count, 0)) if others is None else np.nan_to_num(others / sigma, posinf=np.inf)
        asked = groups >= 0
        own, plain = groups[asked], plain[asked] / sigma
        bets = self._bets(alpha, asked) if form == "cdf" else None
        low, high = np.zeros(count), np.full(count, FARTHEST)
        settled = np.zeros(count, dtype=np.int64)
        for look in range(HALVINGS):
            # The first look is at the far end: what holds there holds without end. Most radii are a few σ at most.
            middle = high if look == 0 else np.minimum((low + high) / 2, 2.0 * 2**look)
            held = plain > middle[own]
            if bets is not None:
                held |= bets.won(middle[own])
            fail = np.bincount(own[~held], minlength=count)
            enough = settled + fail + (further <= middle[:, None]).sum(1) >= k
            if look == 0:
                endless = ~enough
            settled += np.where(enough, 0, fail)
            low, high = np.where(enough, low, middle), np.where(enough, middle, high)
            left = np.where(enough[own], ~held, held)
            if not left.all():
                own, plain = own[left], plain[left]
                bets = bets and bets.of_pairs(left)
        return np.where(endless, np.inf, sigma * low)
