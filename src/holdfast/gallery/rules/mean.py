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
from holdfast.gallery.gallery import Gallery
from holdfast.gallery.rules.base import Array, Question
from holdfast.gallery.values import Hits

NEAR = 2048
"""Candidates that are compared with each of the shortlist."""
FAR = 2**16
"""Of those farther away so many are held against one score that the shortlist keeps and they do not reach; of all
beyond, only the mean is used, which is looser."""
PAIRS = 2**17
"""Pairs that are looked at in full, at most: with a long list fewer candidates of each."""
MOST_LISTED = math.isqrt(4 * PAIRS)
"""A longer list is refused: each of it is compared with all of it, and the memory grows with the square."""
_ROWS = 2**16


class MeanQuestion(Question):
    """A shortlist against all others, and the nearest's class against others."""

    def __init__(self, gallery: Gallery, first: Array, k: int, how: Smoothing, bound: float) -> None:
        super().__init__(gallery, first.shape[1], k, how)
        self.bound = bound
        centre = first.mean(0)
        self._all: Floats = gallery.all_vectors()
        self.listed = min(2 * k, len(self._all))
        near_by = max(self.listed, min(NEAR, PAIRS // self.listed))
        looked = gallery.nearest_arrays(centre, near_by)[1][0]
        self.slots = looked[: self.listed]
        near = self._all[looked].astype(np.float64)
        far, self._beyond = _parted(self._all, looked, centre)
        parts = [candidate_pairs(near[i], near) for i in range(self.listed)]
        labels = [item.label for item in gallery.items(looked)]
        same = np.array([label is not None and label == labels[0] for label in labels])
        self.label = labels[0] if same.any() and not same.all() else None
        if self.label is not None:
            parts.append(class_pairs(centre, near[same], near[~same]))
        self._answers = Answers(Pairs.joined(parts), first, bound)
        self._apart = None if not len(far) else _Apart(self._all, self.slots, far, k, first, bound)
        # Which pairs are about which of the shortlist, none where one meets itself; and which about the class.
        self._listed = np.full(len(self._answers.pairs), -1)
        self._listed[: self.listed * len(near)] = np.repeat(np.arange(self.listed), len(near))
        self._listed[np.arange(self.listed) * (len(near) + 1)] = -1
        self._rivals = np.full(len(self._answers.pairs), -1)
        self._rivals[self.listed * len(near) :] = 0

    @classmethod
    def check(cls, gallery: Gallery, how: Smoothing, k: int, part: float) -> None:
        if min(2 * k, len(gallery)) > MOST_LISTED:
            raise ConfigError(f"k is at most {MOST_LISTED // 2} in a smoothed gallery of this size, not {k}")
        check_samples(how, k * (2 * k + 1) / part, k)

    def add(self, vectors: Array) -> None:
        super().add(vectors)
        self._answers.add(vectors)
        if self._apart is not None:
            self._apart.add(vectors)

    def answer(self, part: float) -> tuple[Array, float]:
        alpha, sigma = self.how.alpha * part / self.statements, self.how.sigma
        each = alpha / self.k
        hits = self._answers.kth_radii(self._listed, self.k, sigma, each, others=self._others(each, self.k))
        if self.label is None:
            return hits, 0.0
        # Candidates that are not near may be of any class: as if none were of the right one.
        others = self._others(alpha, 1)[:1]
        return hits, float(self._answers.kth_radii(self._rivals, 1, sigma, alpha, others=others)[0])

    def forecast(self, radius: float, part: float, times: int) -> NDArray[np.bool_]:
        each = self.how.alpha * part / self.statements / self.k
        held = self._answers.hold(radius, self.how.sigma, each, times)
        failing = np.bincount(self._listed[~held & (self._listed >= 0)], minlength=self.listed)
        if self._apart is not None:
            failing += self.k * ~self._apart.hold(radius, self.how.sigma, each, times)
        failing += (self._beyond_radii(each, times) <= radius).sum(1)
        return np.asarray(failing < self.k)

    def _others(self, alpha: float, k: int) -> Array:
        """For each of the shortlist, the radii against all that are not near; one for all far ones counts k times.

        With them a statement has the smaller of two radii, that against the far ones and the k-th of all others. Which
        is smaller in truth is fixed, and so is what can make it too large: one score, or k pairs.
        """
        beyond = self._beyond_radii(alpha, 1)
        if self._apart is None:
            return beyond
        apart = self._apart.radii(self.how.sigma, alpha)
        return np.concatenate([np.repeat(apart[:, None], k, axis=1), beyond], axis=1)

    def hits(self, name: str) -> tuple[Hits, Slots]:
        return self.gallery.hits_of(self.gallery.scan(self.mean), self.k, name=name)

    def _beyond_radii(self, alpha: float, times: int) -> Array:
        """For each of the shortlist, the k smallest half-space radii against all that are beyond the far ones."""
        if not len(self._beyond):
            return np.empty((self.listed, 0))
        mean = self._sum / self.n
        chosen = self._all[self.slots].astype(np.float64)
        best = np.full((self.listed, self.k), np.inf)
        for start in range(0, len(self._beyond), _ROWS):
            others = self._all[self._beyond[start : start + _ROWS]].astype(np.float64)
            squares = (chosen**2).sum(1)[:, None] - (others**2).sum(1)
            apart = np.sqrt(np.maximum(_squared(chosen, others), 0.0))
            apart = np.where(apart > 1e-4, apart, np.nan)  # As good as equal: never told apart.
            seen = ((chosen @ mean)[:, None] - others @ mean) / apart
            low = mean_below(seen, self.n * times, alpha, self.bound)
            radii = half_space_radius(low, squares / (2 * apart), self.how.sigma, self.bound)
            both = np.concatenate([best, np.nan_to_num(radii, nan=0.0, posinf=np.inf)], axis=1)
            best = np.partition(both, self.k - 1, axis=1)[:, : self.k]
        return best


class _Apart:
    """The shortlist and the far ones, on the two sides of one score.

    c is nearer to g than c′ where ⟨g, c⟩ − ‖c‖²/2 is above ⟨g, c′⟩ − ‖c′‖²/2. With a number τ halfway between the first
    k and the far ones, fixed by samples that serve for nothing else, one question for each candidate is enough where
    pairs would be as many as the product: whether each of the shortlist keeps its score above τ, and whether all far
    ones stay below.
    """

    def __init__(
        self, vectors: Floats, listed: Slots, far: Slots, k: int, first: Array, bound: float
    ) -> None:
        ours, theirs = (vectors[slots].astype(np.float64) for slots in (listed, far))
        centre = first.mean(0)
        scores = [side @ centre - np.square(side).sum(1) / 2 for side in (ours[:k], theirs)]
        border = float(scores[0].min() + scores[1].max()) / 2
        self._ours = Answers(_scored(ours, border, 1), first, bound)
        self._theirs = Answers(_scored(theirs, border, -1), first, bound)

    def add(self, vectors: Array) -> None:
        self._ours.add(vectors)
        self._theirs.add(vectors)

    def radii(self, sigma: float, alpha: float) -> Array:
        """To which radius each of the shortlist is nearer than all far ones; wrong with probability at most α."""
        return np.minimum(self._ours.radii(sigma, alpha), self._theirs.top_radius(1, sigma, alpha))

    def hold(self, radius: float, sigma: float, alpha: float, times: int) -> NDArray[np.bool_]:
        """Which have a radius above this one, or would with `times` as many samples like these."""
        theirs = self._theirs.hold(radius, sigma, alpha, times).all()
        return np.asarray(self._ours.hold(radius, sigma, alpha, times) & theirs)


def _parted(vectors: Floats, looked: Slots, centre: Array) -> tuple[Slots, Slots]:
    """Of the slots that were not looked at, the FAR nearest to the centre, and the rest."""
    rest = np.setdiff1d(np.arange(len(vectors)), looked)
    if len(rest) <= FAR:
        return rest, rest[:0]
    away = np.empty(len(vectors), dtype=np.float32)
    for start in range(0, len(vectors), _ROWS):
        part = vectors[start : start + _ROWS]
        away[start : start + _ROWS] = np.square(part).sum(1) - 2 * part @ centre.astype(np.float32)
    order = np.argpartition(away[rest], FAR)
    return rest[order[:FAR]], np.sort(rest[order[FAR:]])


def _scored(vectors: Array, border: float, side: int) -> Pairs:
    """⟨g, c⟩ − ‖c‖²/2 > τ for each row c, or with side −1 that it is below."""
    lengths = np.linalg.norm(vectors, axis=1)
    scale = np.where(lengths > 0, lengths, 1.0)
    return Pairs(side * vectors / scale[:, None], side * (border + lengths**2 / 2) / scale)


def _squared(a: Array, b: Array) -> Array:
    return np.asarray((a**2).sum(1)[:, None] + (b**2).sum(1) - 2 * a @ b.T)
