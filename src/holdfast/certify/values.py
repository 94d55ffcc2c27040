"""Rank intervals of many queries and hits at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from holdfast.certificate import Verdict
from holdfast.errors import DataError


@dataclass(frozen=True)
class RankBounds:
    """For each query (row) and hit (column): no attack within the threat leaves [best, worst].

    `rank` is the hit's rank without an attack. `known` is False where the bounds were not finite;
    best and worst are then 1 and the number of candidates.
    """

    rank: Tensor
    best: Tensor
    worst: Tensor
    known: Tensor

    def __post_init__(self) -> None:
        if not bool(((self.best <= self.rank) & (self.rank <= self.worst)).all()):
            raise DataError("a rank interval does not hold the rank itself: the bounds are not of these hits")

    def stays_within(self, k: int) -> Tensor:
        """Whether a hit surely stays in the top k."""
        return self.worst <= k

    def verified(self, k: int) -> Tensor:
        """Verify (Eq. 19) with α = k − rank: the rank moves by at most α, up or down."""
        alpha = k - self.rank
        return (self.worst - self.rank <= alpha) & (self.rank - self.best <= alpha)

    def verdicts(self, k: int) -> list[list[Verdict]]:
        """CERTIFIED where a hit surely stays in the top k, else UNKNOWN."""
        sure = self.stays_within(k) & self.known
        return [[Verdict.CERTIFIED if s else Verdict.UNKNOWN for s in row] for row in sure.tolist()]


def rank_bounds(rank: Tensor, farther: Tensor, closer: Tensor, candidates: int, known: Tensor) -> RankBounds:
    """Rank ∈ [1 + surely closer, N − surely farther] (Eq. 9, 10); ties count against the claim."""
    known = known.expand_as(rank)
    best = torch.where(known, 1 + closer, 1)
    worst = torch.where(known, candidates - farther, candidates)
    return RankBounds(rank, best, worst, known)


def settled(rank: Tensor, best: Tensor, worst: Tensor, known: Tensor, candidates: int) -> RankBounds:
    """Where nothing is known, any rank of all candidates is possible."""
    return RankBounds(rank, torch.where(known, best, 1), torch.where(known, worst, candidates), known)


class Alteration(Protocol):
    """What altering images within a threat can do to rankings: the query, candidates, or both."""

    def ranks(self, hits: Tensor, rank: Tensor | None = None) -> RankBounds:
        """Rank intervals of the hits (candidate numbers, one row a query)."""

    def unbeaten(self, same: Tensor) -> Tensor:
        """An upper bound, for each query, on the other-class candidates ahead of its own class (`same` marks it)."""
