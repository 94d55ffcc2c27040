"""The rule `votes`: every noisy copy votes for its k nearest candidates, and the k with most votes are listed.

The share p of copies that vote for a candidate is a smoothed function with values in [0, 1], so
p(x + δ) ≥ Φ(Φ⁻¹(p(x)) − ‖δ‖₂/σ) (Cohen et al. 2019). The shares of all candidates add up to k at most: one with
p > k/(k + 1) is among the first k by votes, since k others at least as high would make k + 1 such shares. A hit
with radius r keeps p > k/(k + 1) for every ‖δ‖₂ < r. If a search for x + δ does not list it, one of the k that it
lists has a share below k/(k + 1), which its samples do not prove to be above: that one has no radius.

Unlike a vector, a vote cannot be far off, and that often makes radii larger where most copies agree; where they are
divided among several candidates it has less to say than the mean. What is deployed is another search, with its own
recall. A copy that has candidates k and k + 1 at the same distance votes
for neither of them: ties count against the claim.
"""

from __future__ import annotations

from collections import Counter
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from holdfast.certify.smoothing import Smoothing, check_samples
from holdfast.certify.smoothing.confidence import share_below
from holdfast.certify.smoothing.radius import vote_radius
from holdfast.errors import GalleryError
from holdfast.gallery.exact import Doubles, Found, Slots
from holdfast.gallery.gallery import Gallery
from holdfast.gallery.ranking import Ranked, hits, rank
from holdfast.gallery.rules.base import Array, Question
from holdfast.gallery.values import Hits

MAJORITY = 0.5
"""Of the votes of the nearest, for its class."""
AT_ONCE = 512
"""Copies whose nearest candidates are looked up together: one pass over the gallery for all of them."""


class VoteQuestion(Question):
    """Whether each of the shortlist has enough votes, and the class of the nearest the majority."""

    def __init__(self, gallery: Gallery, first: Array, k: int, how: Smoothing, bound: float) -> None:
        super().__init__(gallery, first.shape[1], k, how)
        size = len(gallery)
        # A list of all candidates is the same whatever the votes.
        self._need = k / (k + 1) if size > k else 0.0
        self._labels: dict[int, str | None] = {}
        chosen = Ballot(size)
        chosen.add(*gallery.nearest_arrays(first, k + 1), k)
        self.slots = chosen.leading(2 * k)
        counted = self._by_class(chosen)
        self.label = max(counted, key=lambda label: (counted[label], label), default=None)
        self._ballot = Ballot(size)
        self._waiting: list[Array] = []

    @classmethod
    def check(cls, gallery: Gallery, how: Smoothing, k: int, part: float) -> None:
        if (index := gallery.info.index) != "FLAT":
            raise GalleryError(
                f"votes are for the nearest candidates, which the index {index} of {gallery.path} may miss; search by "
                "the mean, or make the gallery with a FLAT index"
            )
        if k < len(gallery):
            check_samples(how, (2 * k + 1) / part, k, k / (k + 1))

    def add(self, vectors: Array) -> None:
        super().add(vectors)
        self._waiting.append(vectors)
        if sum(map(len, self._waiting)) >= AT_ONCE:
            self._vote()

    def answer(self, part: float) -> tuple[Array, float]:
        self._vote()
        hits = self._radii(self._ballot.votes[self.slots], part, self._need)
        if self.label is None:
            return hits, 0.0
        count = self._by_class(self._ballot).get(self.label, 0)
        return hits, float(self._radii(np.array([count]), part, MAJORITY)[0])

    def forecast(self, radius: float, part: float, times: int) -> NDArray[np.bool_]:
        return self._radii(self._ballot.votes[self.slots], part, self._need, times) > radius

    def doubt(self, place: int) -> str:
        share = self._ballot.votes[self.slots[place]] / self.n
        return f"{share:.1%} of the votes, which does not prove more than {self._need:.1%}"

    def hits(self, name: str) -> tuple[Hits, Slots]:
        """Votes decide who is listed; where they are equal, as where nobody has any, the distance to the mean."""
        scan, votes = self.gallery.scan(self.mean), self._ballot.votes
        k = min(self.k, len(votes))
        slots = np.union1d(np.flatnonzero(votes), scan.nearest(k).slots)
        away = scan.distances(slots)
        nearest = np.argsort(away)
        items = dict(zip(slots.tolist(), self.gallery.items(slots), strict=True))
        ranked = rank(
            [Found(away[nearest], slots[nearest])], len(slots), lambda some: {i: items[i].id for i in some}
        )
        listed = np.sort(np.argsort(-votes[ranked.slots[0]], kind="stable")[:k])
        ranked = Ranked(ranked.distances[:, listed], ranked.slots[:, listed], ranked.tied[:, listed])
        return hits(name, ranked, 0, items), ranked.slots[0]

    def shares(self, slots: Slots) -> list[float | None]:
        return [float(share) for share in self._ballot.votes[slots] / self.n]

    def _vote(self) -> None:
        if self._waiting:
            vectors = np.concatenate(self._waiting)
            self._waiting.clear()
            self._ballot.add(*self.gallery.nearest_arrays(vectors, self.k + 1), self.k)

    def _radii(self, counts: NDArray[np.int64], part: float, need: float, times: int = 1) -> Array:
        alpha = self.how.alpha * part / self.statements
        share = share_below(times * counts, times * self.n, alpha)
        return vote_radius(share, self.how.sigma, need) if need else np.full(len(counts), np.inf)

    def _by_class(self, ballot: Ballot) -> Counter[str]:
        """How many copies have a nearest candidate of each class."""
        alone = np.flatnonzero(ballot.nearest).tolist()
        new = sorted({*alone, *chain(*ballot.tied)} - self._labels.keys())
        items = self.gallery.items(np.array(new, dtype=np.int64)) if new else []
        self._labels |= {slot: item.label for slot, item in zip(new, items, strict=True)}
        found: Counter[str] = Counter()
        for group, count in [*(((slot,), ballot.nearest[slot]) for slot in alone), *ballot.tied.items()]:
            labels = {self._labels[slot] for slot in group}
            if len(labels) == 1 and (label := labels.pop()) is not None:
                found[label] += int(count)
        return found


class Ballot:
    """The votes of noisy copies: for their k nearest candidates, and for the nearest alone."""

    def __init__(self, size: int) -> None:
        self.votes = np.zeros(size, dtype=np.int64)
        self.nearest = np.zeros(size, dtype=np.int64)
        self.tied: Counter[tuple[int, ...]] = Counter()
        """Copies that have several nearest candidates, by which those are."""

    def add(self, distances: Doubles, slots: Slots, k: int) -> None:
        """The k + 1 nearest candidates of each copy, or all where there are no more."""
        width = slots.shape[1]
        counted = distances[:, :k] < distances[:, k:] if width > k else np.ones(slots.shape, dtype=np.bool_)
        np.add.at(self.votes, slots[:, :k][counted], 1)
        alone = distances[:, 0] < distances[:, 1] if width > 1 else np.ones(len(slots), dtype=np.bool_)
        np.add.at(self.nearest, slots[alone, 0], 1)
        for row in np.flatnonzero(~alone):
            group = slots[row][distances[row] == distances[row, 0]]
            if len(group) < width or width == len(self.votes):  # Else more may be as near, of any class.
                self.tied[tuple(sorted(group.tolist()))] += 1

    def leading(self, count: int) -> Slots:
        """Those with most votes, at most `count`, none without."""
        order = np.argsort(-self.votes, kind="stable")[:count]
        return order[self.votes[order] > 0]
