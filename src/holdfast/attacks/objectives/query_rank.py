"""QA+ and QA−: raise or lower chosen candidates by altering the query (Zhou et al. 2020; Kakizaki et al., Eq. 2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from holdfast.attacks.candidates import Candidates
from holdfast.attacks.objectives.base import Assessment, Given, Need, Objective, Wish, without_own
from holdfast.attacks.objectives.listed import MarkedList
from holdfast.errors import ConfigError


@dataclass(frozen=True, eq=False)
class RankWish(Wish):
    """mean over targets c and candidates x of relu(±(d(q̃,c) − d(q̃,x))), plus ξ·(the same, +, for `kept`).

    The score is the mean share of the candidates before the targets (negative if they are to be
    lowered); with the kept term on it is the loss, so that iterates are judged by both aims.
    """

    candidates: Candidates
    raising: bool
    k: int
    targets: Tensor
    own: Tensor
    kept: Tensor | None = None
    xi: float = 0.0

    def assess(self, seen: Tensor) -> Assessment:
        distances = self.candidates.distances(seen)
        at = distances.gather(1, self.targets)
        loss = self._hinge(distances, at, self.raising)
        before = self._before(distances.detach(), at.detach())
        success = (before < self.k).all(1) if self.raising else (before >= self.k).all(1)
        if self.kept is not None:
            loss = loss + self.xi * self._hinge(distances, distances.gather(1, self.kept), True)
            return Assessment(loss, loss.detach(), success)
        share = before.to(loss.dtype).mean(1) / len(self.candidates)
        return Assessment(loss, share if self.raising else -share, success)

    def _hinge(self, distances: Tensor, at: Tensor, raising: bool) -> Tensor:
        """The image itself is left out by taking its term away again: the two cancel in the gradient too."""
        sign = 1 if raising else -1
        total = torch.relu(sign * (at[:, :, None] - distances[:, None])).sum(2)
        there = self.own >= 0
        own = distances.gather(1, self.own.clamp(min=0)[:, None])
        total = total - torch.relu(sign * (at - own)) * there[:, None]
        return (total / (len(self.candidates) - there.long())[:, None]).mean(1)

    def _before(self, distances: Tensor, at: Tensor) -> Tensor:
        """How many candidates are before each target; a tie counts against the attacker."""
        distances, at = distances[:, None], at[:, :, None]
        own = distances.squeeze(1).gather(1, self.own.clamp(min=0)[:, None])
        there = (self.own >= 0)[:, None]
        if self.raising:
            # A target is no farther than itself, which does not count, unless it is the image itself.
            itself = (self.targets != self.own[:, None]).long()
            return (distances <= at).sum(2) - itself - ((own <= at.squeeze(2)) & there).long()
        return (distances < at).sum(2) - ((own < at.squeeze(2)) & there).long()


class QueryRank(Objective):
    """Both directions. `k` is what counts as success: every target inside (QA+) or outside (QA−) the top k.

    `keep` original top results are held at their place with weight `xi`, the semantics-preserving
    term: the altered query still finds what it found.
    """

    raising: ClassVar[bool]
    needs: ClassVar[tuple[Need, ...]] = ("gallery", "targets")
    in_ers = True

    def __init__(self, given: Given, *, k: int = Objective.top, keep: int = 0, xi: float = 1.0) -> None:
        super().__init__(given)
        if k < 1 or keep < 0 or xi < 0:
            raise ConfigError(f"k is at least 1, keep and xi at least 0; found k={k}, keep={keep}, xi={xi:g}")
        if keep and keep + self.targets(slice(0, 1)).shape[1] + 1 > len(self.candidates):
            raise ConfigError(f"{keep} results cannot be kept: there are {len(self.candidates)} candidates")
        self.k, self.keep, self.xi = k, keep, xi

    def bind(self, rows: slice, clean: Tensor) -> Wish:
        candidates = self.candidates.like(clean)
        own, targets = self.own(rows, clean), self.targets(rows).to(clean.device)
        kept = None
        if self.keep:
            distances = candidates.distances(clean).scatter(1, targets, torch.inf)
            present = without_own(torch.ones_like(distances, dtype=torch.bool), own)
            kept = distances.masked_fill(~present, torch.inf).topk(self.keep, largest=False).indices
        return RankWish(candidates, self.raising, self.k, targets, own, kept, self.xi)

    def bind_lists(self, rows: slice, clean: Tensor) -> Wish:
        return MarkedList(self.raising, self.k, self.targets(rows).to(clean.device))


class RaiseByQuery(QueryRank):
    """QA+: the altered query ranks the targets high."""

    name = "qa+"
    wants = "raise chosen candidates by altering the query"
    raising = True
    draws, measures = "any", "raised"


class LowerByQuery(QueryRank):
    """QA−: the altered query ranks the targets low."""

    name = "qa-"
    wants = "lower chosen candidates by altering the query"
    raising = False
    draws, measures = "near", "lowered"
