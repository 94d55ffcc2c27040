"""Rank certificates from boxes of embeddings: where a hit can and cannot move.

Kakizaki, Fukuchi, Sakuma, "Certified Defense for Content Based Image Retrieval", Theorems 1 to 6. The
boxes come from `bounds`; everything here is float64, so its own rounding lies far below the slack
that each comparison keeps. `method="paper"` compares the bounds of Eq. 17 and 18; `"interval"` takes
the exact minimum over the box and certifies everything that `"paper"` does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from holdfast.bounds import Box, distance_bounds
from holdfast.bounds.pairs import in_threads
from holdfast.certify.values import RankBounds, rank_bounds

Method = Literal["paper", "interval"]
CHAMPIONS = 8
"""Same-class candidates that are tried against each rival; any subset is sound."""

_SLACK = 2.0**-40


@dataclass(frozen=True)
class Candidates:
    """A gallery's vectors with their classes, in float64."""

    vectors: Tensor
    labels: Tensor | None = None

    def __len__(self) -> int:
        return len(self.vectors)


def nearest(queries: Tensor, candidates: Tensor, k: int) -> Tensor:
    """The k nearest candidates of each query, nearest first; equal distances by position."""
    distance = torch.cdist(queries.double(), candidates.double(), compute_mode="donot_use_mm_for_euclid_dist")
    return distance.sort(dim=1, stable=True).indices[:, :k]


class QueryAttack:
    """What an attacker who alters the query within its box can do to rankings of fixed candidates.

    For every z in box i (the query's possible embeddings): c is surely farther than ĉ if
    ‖z − c‖² − ‖z − ĉ‖² = ‖c‖² − ‖ĉ‖² − 2z·(c − ĉ) is positive on the whole box. It is linear in z, so its
    minimum ‖c‖² − ‖ĉ‖² − 2m·(c − ĉ) − 2r·|c − ĉ| is exact.
    """

    def __init__(self, box: Box, candidates: Tensor, method: Method = "interval") -> None:
        self._box = box.to(torch.float64)
        self._vectors = candidates.double().contiguous()
        self._method = method
        self._upper, self._lower = distance_bounds(self._box, self._vectors)
        self.known = torch.isfinite(self._upper).all(1) & torch.isfinite(self._lower).all(1)
        squared = self._vectors.square().sum(1)
        self._level = torch.addmm(squared[None], self._box.centre, self._vectors.T, alpha=-2)
        reach = self._box.centre.norm(dim=1) + self._box.radius.norm(dim=1) + squared.max().sqrt()
        self._slack = _SLACK * reach.square()

    def ranks(self, hits: Tensor, rank: Tensor | None = None) -> RankBounds:
        """Rank intervals of the hits (candidate numbers, one row a query)."""
        n = len(self._vectors)
        if self._method == "paper":
            farther, closer = _count_apart(self._upper, self._lower, hits)
        else:
            farther, closer = self._count(hits)
        if rank is None:
            rank = torch.arange(1, hits.shape[1] + 1).expand_as(hits)
        return rank_bounds(rank, farther, closer, n, self.known[:, None])

    def unbeaten(self, same: Tensor) -> Tensor:
        """For each query, an upper bound on the number of other-class candidates ahead of its own class.

        `same` marks the candidates of the query's class. Under any attack let p* be the nearest of
        them: an other-class candidate ahead of p* is not surely farther than any p. So if at most
        K − 1 candidates are not surely beaten by some p, the top K surely holds a right one. A query
        without any same-class candidate gets a number above every K.
        """
        from holdfast.bounds.kernels import count_unbeaten

        upper, lower = self._upper, self._lower
        if self._method == "paper":
            return _unbeaten(upper, lower, same, self.known)
        champions = _champions(upper, same)
        arrays = self._arrays(~same, champions)
        out = torch.empty(len(same), dtype=torch.int64)
        in_threads(lambda a, b: count_unbeaten(*arrays, out.numpy(), a, b), len(same), same.numel())
        return _settled(out, same, self.known)

    def _count(self, hits: Tensor) -> tuple[Tensor, Tensor]:
        from holdfast.bounds.kernels import count_sure

        farther = torch.empty(hits.shape, dtype=torch.int64)
        closer = torch.empty_like(farther)
        t = (self._box.radius, self._vectors, self._level, self._upper, self._lower, hits, self._slack)
        arrays = [x.contiguous().numpy() for x in (*t, farther, closer)]
        in_threads(lambda a, b: count_sure(*arrays, a, b), len(hits), hits.numel() * len(self._vectors))
        return farther, closer

    def _arrays(self, rivals: Tensor, champions: Tensor) -> list[object]:
        t = (
            self._box.radius,
            self._vectors,
            self._level,
            self._upper,
            self._lower,
            rivals,
            champions,
            self._slack,
        )
        return [x.contiguous().numpy() for x in t]


class CandidateAttack:
    """What an attacker who alters every candidate within its own box can do to rankings for fixed queries.

    Each candidate moves by itself, so c is surely farther than ĉ exactly if lower(c) > upper(ĉ) (Eq. 17
    and 18 with the candidates' boxes; Eq. 11 and 14 print d̲_c(c) where the proof means d̲_q(c)).
    """

    def __init__(self, boxes: Box, queries: Tensor) -> None:
        upper, lower = distance_bounds(boxes.to(torch.float64), queries.double())
        self.upper, self.lower = upper.T.contiguous(), lower.T.contiguous()
        self.known = torch.isfinite(self.upper).all(1) & torch.isfinite(self.lower).all(1)

    def ranks(self, hits: Tensor, rank: Tensor | None = None) -> RankBounds:
        """Rank intervals of the hits (candidate numbers, one row a query)."""
        farther, closer = _count_apart(self.upper, self.lower, hits)
        if rank is None:
            rank = torch.arange(1, hits.shape[1] + 1).expand_as(hits)
        return rank_bounds(rank, farther, closer, self.upper.shape[1], self.known[:, None])

    def unbeaten(self, same: Tensor) -> Tensor:
        """As `QueryAttack.unbeaten`."""
        return _unbeaten(self.upper, self.lower, same, self.known)


def _count_apart(upper: Tensor, lower: Tensor, hits: Tensor) -> tuple[Tensor, Tensor]:
    """How many candidates have lower > upper(hit), and how many upper < lower(hit)."""
    n = upper.shape[1]
    own_upper, own_lower = upper.gather(1, hits), lower.gather(1, hits)
    farther = n - torch.searchsorted(lower.sort(dim=1).values, own_upper.contiguous(), right=True)
    closer = torch.searchsorted(upper.sort(dim=1).values, own_lower.contiguous())
    return farther, closer


def _unbeaten(upper: Tensor, lower: Tensor, same: Tensor, known: Tensor) -> Tensor:
    best = torch.where(same, upper, torch.inf).amin(1, keepdim=True)
    return _settled((~same & ~(best < lower)).sum(1), same, known)


def _settled(count: Tensor, same: Tensor, known: Tensor) -> Tensor:
    """`count` where the bounds are known, else every rival; where there is nothing right to find, no K is enough."""
    count = torch.where(known, count, (~same).sum(1))
    return torch.where(same.any(1), count, torch.iinfo(torch.int64).max)


def _champions(upper: Tensor, same: Tensor) -> Tensor:
    """The few same-class candidates with the smallest upper distance; -1 where there are fewer."""
    far, order = torch.where(same, upper, torch.inf).topk(
        min(CHAMPIONS, upper.shape[1]), dim=1, largest=False
    )
    return torch.where(torch.isfinite(far), order, -1)
