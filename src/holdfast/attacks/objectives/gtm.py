"""GTM: greedy top-1 misranking (Zhou et al. 2021)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.attacks.objectives.base import Assessment, Wish
from holdfast.attacks.objectives.ltm import MatchWish, Misrank


@dataclass(frozen=True, eq=False)
class GreedyWish(MatchWish):
    """d(q̃, the non-matching candidate that was nearest to q); iterates are judged by the nearest hit's class."""

    target: Tensor

    def assess(self, seen: Tensor) -> Assessment:
        with torch.no_grad():
            score, success = self.ruled(self.candidates.distances(seen))
        return Assessment(self.to(seen, self.target) * self.other.any(1), score, success)


class GreedyMisrank(Misrank):
    """The query is brought to the non-matching candidate that is nearest to begin with.

    The nearest is sought among all candidates with the matching ones masked, so its number is that
    of the gallery whatever order the gallery has.
    """

    name = "gtm"
    wants = "put the nearest candidate of another class first"

    def bind(self, rows: slice, clean: Tensor) -> Wish:
        candidates, same, other = self.matching(rows, clean)
        target = candidates.distances(clean).masked_fill(~other, torch.inf).argmin(1)
        return GreedyWish(candidates, same, other, target)
