"""The rule `mean`: candidates are ranked by their distance to g(x), the mean of the noisy copies' vectors.

If a hit has radius r, it is among the first k by g(x + δ) for every ‖δ‖₂ < r. A search for x + δ lists k candidates
by its own estimate; if the hit is not among them, one that is listed does not belong to the first k by g(x + δ),
and that one has no radius.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from holdfast.certify.smoothing import Answers, Pairs, Smoothing, candidate_pairs, check_samples, class_pairs
from holdfast.certify.smoothing.confidence import mean_below
from holdfast.certify.smoothing.radius import half_space_radius
from holdfast.errors import ConfigError
from holdfast.gallery.exact import Floats, Slots
from holdfast.gallery.interface import AnyGallery
from holdfast.gallery.rules.base import Array, Question
from holdfast.gallery.values import Hits

NEAR = 2048
"""Candidates whose projections are looked at in full; of those farther away only the mean, which is looser."""
PAIRS = 2**17
"""Pairs that are looked at in full, at most: with a long list fewer candidates of each."""
MOST_LISTED = math.isqrt(4 * PAIRS)
"""A longer list is refused: each of it is compared with all of it, and the memory grows with the square."""
_ROWS = 2**16


class MeanQuestion(Question):
    """A shortlist against all others, and the nearest's class against others."""

    def __init__(self, gallery: AnyGallery, first: Array, k: int, how: Smoothing, bound: float) -> None:
        super().__init__(gallery, first.shape[1], k, how)
        self.bound = bound
        centre = first.mean(0)
        self._all: Floats = gallery.all_vectors()
        self.listed = min(2 * k, len(self._all))
        near_by = max(self.listed, min(NEAR, PAIRS // self.listed))
        looked = gallery.search_arrays(centre, near_by)[1][0]
        self.slots = looked[: self.listed]
        near = self._all[looked].astype(np.float64)
        self._far = np.setdiff1d(np.arange(len(self._all)), looked) if len(near) < len(self._all) else ()
        parts = [candidate_pairs(near[i], near) for i in range(self.listed)]
        labels = [item.label for item in gallery.items(looked)]
        same = np.array([label is not None and label == labels[0] for label in labels])
        self.label = labels[0] if same.any() and not same.all() else None
        if self.label is not None:
            parts.append(class_pairs(centre, near[same], near[~same]))
        self._answers = Answers(Pairs.joined(parts), first, bound)
        # Which pairs are about which of the shortlist, none where one meets itself; and which about the class.
        self._listed = np.full(len(self._answers.pairs), -1)
        self._listed[: self.listed * len(near)] = np.repeat(np.arange(self.listed), len(near))
        self._listed[np.arange(self.listed) * (len(near) + 1)] = -1
        self._rivals = np.full(len(self._answers.pairs), -1)
        self._rivals[self.listed * len(near) :] = 0

    @classmethod
    def check(cls, gallery: AnyGallery, how: Smoothing, k: int, looks: int) -> None:
        if min(2 * k, len(gallery)) > MOST_LISTED:
            raise ConfigError(f"k is at most {MOST_LISTED // 2} in a smoothed gallery of this size, not {k}")
        check_samples(how, k * (2 * k + 1) * looks)

    def add(self, vectors: Array) -> None:
        super().add(vectors)
        self._answers.add(vectors)

    def answer(self, looks: int) -> tuple[Array, float]:
        alpha, sigma = self.how.alpha / looks / self.statements, self.how.sigma
        beyond = self._beyond(alpha / self.k, 1)
        hits = self._answers.kth_radii(self._listed, self.k, sigma, alpha / self.k, others=beyond)
        if self.label is None:
            return hits, 0.0
        # Candidates that were not looked at may be of any class: as if none were of the right one.
        beyond = self._beyond(alpha, 1)[:1]
        return hits, float(self._answers.kth_radii(self._rivals, 1, sigma, alpha, others=beyond)[0])

    def forecast(self, radius: float, looks: int, times: int) -> NDArray[np.bool_]:
        alpha = self.how.alpha / looks / self.statements / self.k
        held = self._answers.hold(radius, self.how.sigma, alpha, times)
        failing = np.bincount(self._listed[~held & (self._listed >= 0)], minlength=self.listed)
        failing += (self._beyond(alpha, times) <= radius).sum(1)
        return np.asarray(failing < self.k)

    def hits(self, name: str) -> tuple[Hits, Slots]:
        return self.gallery.hits_of(self.gallery.scan(self.mean), self.k, name=name)

    def _beyond(self, alpha: float, times: int) -> Array:
        """For each of the shortlist, the k smallest half-space radii against all that are not near."""
        if not len(self._far):
            return np.empty((self.listed, 0))
        mean = self._sum / self.n
        chosen = self._all[self.slots].astype(np.float64)
        best = np.full((self.listed, self.k), np.inf)
        for start in range(0, len(self._far), _ROWS):
            others = self._all[self._far[start : start + _ROWS]].astype(np.float64)
            squares = (chosen**2).sum(1)[:, None] - (others**2).sum(1)
            apart = np.sqrt(np.maximum(_squared(chosen, others), 0.0))
            apart = np.where(apart > 1e-6, apart, np.nan)  # As good as equal: never told apart.
            seen = ((chosen @ mean)[:, None] - others @ mean) / apart
            low = mean_below(seen, self.n * times, alpha, self.bound)
            radii = half_space_radius(low, squares / (2 * apart), self.how.sigma, self.bound)
            both = np.concatenate([best, np.nan_to_num(radii, nan=0.0, posinf=np.inf)], axis=1)
            best = np.partition(both, self.k - 1, axis=1)[:, : self.k]
        return best


def _squared(a: Array, b: Array) -> Array:
    return np.asarray((a**2).sum(1)[:, None] + (b**2).sum(1) - 2 * a @ b.T)
