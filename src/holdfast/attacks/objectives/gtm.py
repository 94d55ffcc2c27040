"""GTM: greedy top-1 misranking (Zhou et al. 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from holdfast.attacks.candidates import Candidates
from holdfast.attacks.objectives.base import Assessment, Draws, Wish
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
    draws: ClassVar[Draws | None] = "other class"

    def bind(self, rows: slice, clean: Tensor) -> Wish:
        candidates, same, other = self.matching(rows, clean)
        return GreedyWish(candidates, same, other, self.aims(candidates, other, clean))

    def aims(self, candidates: Candidates, other: Tensor, clean: Tensor) -> Tensor:
        """The candidate that each query is brought to; `other` are those of another class."""
        return candidates.distances(clean).masked_fill(~other, torch.inf).argmin(1)


class PublishedMisrank(GreedyMisrank):
    """GTM as the public reference code has it, with a mistake: it aims at another candidate than it means to.

    The nearest candidate of another class is found by its place among the candidates of other classes, and that
    place is then taken for its number among all. Only for comparison with published tables.
    """

    name = "gtm-published"
    wants = "as gtm, with the mistaken target of the public reference code (to compare with published tables)"
    in_ers, draws = False, None

    def aims(self, candidates: Candidates, other: Tensor, clean: Tensor) -> Tensor:
        meant = super().aims(candidates, other, clean)
        place = other.cumsum(1).gather(1, meant[:, None]).squeeze(1) - 1
        return place.clamp(min=0)
