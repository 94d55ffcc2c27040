"""CA+ and CA−: raise or lower a candidate by altering it (Zhou et al. 2020; Kakizaki et al., Eq. 4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from holdfast.attacks.candidates import Candidates
from holdfast.attacks.objectives.base import Assessment, Given, Objective, Wish
from holdfast.errors import ConfigError


class Rivals:
    """The sorted distances of all candidates to each of some queries.

    The altered candidate is the only one that moves, so its hinge against all N others is a
    piecewise linear function of one number, read from these tables in log N steps.
    """

    def __init__(self, queries: Tensor, candidates: Candidates) -> None:
        self.sorted = candidates.distances(queries).double().sort(dim=1).values
        zero = torch.zeros_like(self.sorted[:, :1])
        self.sums = torch.cat([zero, self.sorted.cumsum(1)], 1)

    @property
    def count(self) -> int:
        return self.sorted.shape[1]

    def before(self, query: Tensor, distance: Tensor, ties: bool = False) -> Tensor:
        """How many candidates are nearer to each query than `distance`, or as near if `ties`."""
        flat, n = self.sorted.flatten(), self.count
        low, high = torch.zeros_like(query), torch.full_like(query, n)
        for _ in range(n.bit_length()):
            middle = (low + high) // 2
            value = flat[query * n + middle.clamp(max=n - 1)]
            below = (value <= distance if ties else value < distance) & (low < high)
            low = torch.where(below, middle + 1, low)
            high = torch.where(below, high, middle)
        return low

    def hinge(self, query: Tensor, distance: Tensor, raising: bool) -> Tensor:
        """Σ over candidates x of relu(±(distance − d(query, x)))."""
        nearer = self.before(query, distance.detach())
        sums = self.sums.flatten()
        start = query * (self.count + 1)
        if raising:
            return nearer * distance - sums[start + nearer]
        return sums[start + self.count] - sums[start + nearer] - (self.count - nearer) * distance


@dataclass(frozen=True, eq=False)
class CandidateWish(Wish):
    """mean over queries q and candidates x of relu(±(d(q,c̃) − d(q,x))); the altered candidate's old self is no x."""

    rivals: Rivals
    raising: bool
    k: int
    queries: Tensor
    """The queries' vectors, B×M×D."""
    which: Tensor
    """Their rows in `rivals`, B×M."""
    own: Tensor
    """The old self's distance to each query, or NaN, B×M."""

    def assess(self, seen: Tensor) -> Assessment:
        distance = (seen[:, None] - self.queries).norm(dim=2).double()
        there = ~self.own.isnan()
        own = self.own.nan_to_num(0.0)
        sign = 1 if self.raising else -1
        total = self.rivals.hinge(self.which, distance, self.raising)
        total = total - torch.relu(sign * (distance - own)) * there
        loss = (total / (self.rivals.count - there.long()).clamp(min=1)).mean(1).to(seen.dtype)
        at = distance.detach()
        # A tie counts against the attacker.
        before = self.rivals.before(self.which, at, ties=self.raising)
        before = before - ((own <= at if self.raising else own < at) & there).long()
        share = before.to(seen.dtype).mean(1) / self.rivals.count
        success = (before < self.k).all(1) if self.raising else (before >= self.k).all(1)
        return Assessment(loss, share if self.raising else -share, success)


class CandidateRank(Objective):
    """Both directions. `k` is what counts as success: inside (CA+) or outside (CA−) the top k of every query."""

    raising: ClassVar[bool]
    alters = "candidates"
    needs = ("gallery", "targets", "queries")
    lists = False
    in_ers = True

    def __init__(self, given: Given, *, k: int = Objective.top) -> None:
        super().__init__(given)
        if k < 1:
            raise ConfigError(f"k is at least 1, not {k}")
        self.k = k

    def bind(self, rows: slice, clean: Tensor) -> Wish:
        assert self.given.queries is not None
        candidates = self.candidates.like(clean)
        numbers, which = torch.unique(self.targets(rows), return_inverse=True)
        asked = self.given.queries[numbers].to(clean)
        which = which.to(clean.device)
        queries = asked[which]
        own = self.own(rows, clean)
        # By the same product as the rivals' distances, among which it is: to the last bit.
        old = candidates.distances(asked)[which, own.clamp(min=0)[:, None]].double()
        old = old.masked_fill((own < 0)[:, None], torch.nan)
        return CandidateWish(Rivals(asked, candidates), self.raising, self.k, queries, which, old)


class RaiseCandidate(CandidateRank):
    """CA+: the altered candidate is ranked high by the queries."""

    name = "ca+"
    wants = "raise a candidate for chosen queries by altering it"
    raising = True
    draws, measures = "any", "raised"


class LowerCandidate(CandidateRank):
    """CA−: the altered candidate is ranked low by the queries."""

    name = "ca-"
    wants = "lower a candidate for chosen queries by altering it"
    raising = False
    draws, measures = "near", "lowered"
