"""LTM: learning to misrank (Wang et al. 2020)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.attacks.candidates import Candidates
from holdfast.attacks.objectives.base import Assessment, Objective, Wish, without_own
from holdfast.attacks.objectives.listed import MatchingList


@dataclass(frozen=True, eq=False)
class MatchWish(Wish):
    """A wish about the nearest matching and non-matching candidates; the image itself is neither."""

    candidates: Candidates
    same: Tensor
    """Candidates of the image's class but itself, B×N."""
    other: Tensor
    """Candidates of other classes, B×N."""

    def ruled(self, distances: Tensor) -> tuple[Tensor, Tensor]:
        """Score and success: whether the nearest candidate is of the image's class; ties say it is.

        Where the class has no other candidate there is nothing to break: no success.
        """
        match = distances.masked_fill(~self.same, torch.inf).amin(1)
        rival = distances.masked_fill(~self.other, torch.inf).amin(1)
        found = match <= rival
        return found.to(distances.dtype), ~found & match.isfinite()

    def to(self, seen: Tensor, index: Tensor) -> Tensor:
        """The distance of each vector to one candidate, by its difference."""
        distance: Tensor = (seen - self.candidates.vectors[index]).norm(dim=1)
        return distance


@dataclass(frozen=True, eq=False)
class MisrankWish(MatchWish):
    """relu(max over non-matching x of d(q̃,x) − min over matching x of d(q̃,x)).

    The two candidates are found by one product without gradient; only their own distances need one.
    """

    def assess(self, seen: Tensor) -> Assessment:
        with torch.no_grad():
            distances = self.candidates.distances(seen)
            far = distances.masked_fill(~self.other, -torch.inf).argmax(1)
            near = distances.masked_fill(~self.same, torch.inf).argmin(1)
            score, success = self.ruled(distances)
            possible = self.other.any(1) & self.same.any(1)
        loss = torch.relu(self.to(seen, far) - self.to(seen, near)) * possible
        return Assessment(loss, score, success)


class Misrank(Objective):
    """Every non-matching candidate is to come before every matching one."""

    name = "ltm"
    wants = "rank all other classes before the query's own"
    needs = ("gallery", "labels")
    in_ers = True

    def matching(self, rows: slice, clean: Tensor) -> tuple[Candidates, Tensor, Tensor]:
        """The candidates, those of each image's class without itself, and those of other classes."""
        candidates = self.candidates.like(clean)
        assert self.given.classes is not None
        assert self.given.labels is not None
        same = self.given.labels[rows][:, None] == self.given.classes[None]
        same = same.to(clean.device)
        own = self.own(rows, clean)
        return candidates, without_own(same, own), without_own(~same, own)

    def bind(self, rows: slice, clean: Tensor) -> Wish:
        return MisrankWish(*self.matching(rows, clean))

    def bind_lists(self, rows: slice, clean: Tensor) -> Wish:
        assert self.given.classes is not None
        assert self.given.labels is not None
        labels = self.given.labels[rows].to(clean.device)
        classes = (self.given.classes.to(clean.device),)
        return MatchingList(False, 1, labels, self.own(rows, clean), classes)
