"""What every rule of a smoothed search answers about one query."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from holdfast.certify.smoothing import Smoothing
from holdfast.gallery.exact import Floats, Slots
from holdfast.gallery.gallery import Gallery
from holdfast.gallery.values import Hits

Array = NDArray[np.float64]


class Question(ABC):
    """A shortlist and a class, chosen by a first few samples; samples of their own answer.

    Everything happens within one snapshot of the gallery. What `answer` says is wrong with probability at
    most its `part` of α. Where `hits` at x + δ lacks a candidate whose radius at x is above ‖δ‖₂, one that it lists
    has no radius there, but for that probability in each of the two searches: the search says that it is not sure.
    """

    slots: Slots
    """The shortlist, in the order of what `answer` says."""
    label: str | None
    """The class that is asked about; None where there is none."""

    def __init__(self, gallery: Gallery, dim: int, k: int, how: Smoothing) -> None:
        self.gallery, self.k, self.how = gallery, k, how
        self.n = 0
        self._sum = np.zeros(dim)

    @classmethod
    @abstractmethod
    def check(cls, gallery: Gallery, how: Smoothing, k: int, part: float) -> None:
        """Refuse, before any sample, what cannot be answered for k hits in this gallery with this part of α."""

    def add(self, vectors: Array) -> None:
        """Samples h(x + z), a row each."""
        self.n += len(vectors)
        self._sum += vectors.sum(0)

    @abstractmethod
    def answer(self, part: float) -> tuple[Array, float]:
        """The radius of each of the shortlist, and that of the class."""

    @abstractmethod
    def forecast(self, radius: float, part: float, times: int) -> NDArray[np.bool_]:
        """Which of the shortlist would have more than this radius, with `times` as many samples like these."""

    @abstractmethod
    def hits(self, name: str) -> tuple[Hits, Slots]:
        """The k candidates that the samples list, nearest to their mean first, and their slots."""

    def doubt(self, place: int) -> str:
        """Why one of the shortlist has no radius."""
        return "too close to call"

    def shares(self, slots: Slots) -> list[float | None]:
        """The share of noisy copies that vote for each, where the rule is by votes."""
        return [None] * len(slots)

    @property
    def mean(self) -> Floats:
        return (self._sum / self.n).astype(np.float32)

    @property
    def statements(self) -> int:
        """Among how many statements α is divided: one for each of the shortlist, one for the class."""
        return max(1, len(self.slots) + (self.label is not None))

    def settled(self, answer: tuple[Array, float], eps: float, part: float) -> bool:
        """Whether more samples would change nothing: every hit is sure to `eps`, or has no hope of it.

        Hope is given up by half of the samples at the earliest, where four times what is left would not do: few
        samples estimate badly what more will say.
        """
        unproved = np.isin(self.slots, self.hits("")[1]) & ~(answer[0] > eps)
        if unproved.any() and self.n >= self.how.n // 2:
            unproved &= self.forecast(eps, part, max(1, 4 * self.how.n // self.n))
        return not unproved.any()
