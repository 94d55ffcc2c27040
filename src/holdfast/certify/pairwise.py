"""Rankings decided pair by pair: what every certificate for rankings shares."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.bounds.operations import absolute
from holdfast.certify.values import RankBounds, rank_bounds
from holdfast.errors import DataError

CHAMPIONS = 8
"""Same-class candidates that are tried against each rival; any subset is sound."""

DIVISION = 2.0**-17
"""The share of a query's norm kept for float32 rounding where inference divides by that norm."""
_SIDES = 1 << 25


def slack_of(terms: int) -> float:
    """The share of a distance that each comparison keeps for the rounding of float64 sums of so many terms."""
    return max(2.0**-40, 8 * terms * 2.0**-53)


class Apart:
    """Rankings where each distance is bounded by itself: rows are queries, columns candidates."""

    def __init__(self, upper: Tensor, lower: Tensor, terms: int) -> None:
        self.known = torch.isfinite(upper).all(1) & torch.isfinite(lower).all(1)
        # Room for the rounding of their own sums, and for vectors near zero that are read as zero.
        share, least = slack_of(terms), absolute(terms)
        self.upper, self.lower = upper * (1 + share) + least, lower * (1 - share) - least

    def ranks(self, hits: Tensor, rank: Tensor | None = None) -> RankBounds:
        """Rank intervals of the hits (candidate numbers, one row a query)."""
        self.check_hits(hits)
        farther, closer = self._counts(hits)
        return rank_bounds(given(rank, hits), farther, closer, self.upper.shape[1], self.known[:, None])

    def check_hits(self, hits: Tensor) -> None:
        """Refuse what are no numbers of candidates: compiled loops would read beyond their arrays."""
        queries, candidates = self.upper.shape
        if hits.dtype != torch.int64 or hits.ndim != 2 or len(hits) != queries:
            raise DataError(f"hits are whole numbers (int64), a row for each of {queries} queries")
        if hits.numel() and not bool(((hits >= 0) & (hits < candidates)).all()):
            raise DataError(f"hits are numbers of candidates, 0 to {candidates - 1}")

    def unbeaten(self, same: Tensor) -> Tensor:
        """For each query, an upper bound on the number of other-class candidates ahead of its own class.

        `same` marks the candidates of the query's class. Under any attack let p* be the nearest of
        them: an other-class candidate ahead of p* is not surely farther than any p. So if at most
        K − 1 candidates are not surely beaten by some p, the top K surely holds a right one. A query
        without any same-class candidate gets a number above every K.
        """
        return self._settled(self._unbeaten(same), same)

    def _counts(self, hits: Tensor) -> tuple[Tensor, Tensor]:
        """How many candidates have lower > upper(hit), and how many upper < lower(hit)."""
        own_upper, own_lower = self.upper.gather(1, hits), self.lower.gather(1, hits)
        lower = self.lower.sort(dim=1).values
        farther = self.upper.shape[1] - torch.searchsorted(lower, own_upper.contiguous(), right=True)
        return farther, torch.searchsorted(self.upper.sort(dim=1).values, own_lower.contiguous())

    def _unbeaten(self, same: Tensor) -> Tensor:
        best = torch.where(same, self.upper, torch.inf).amin(1, keepdim=True)
        return (~same & ~(best < self.lower)).sum(1)

    def _settled(self, count: Tensor, same: Tensor) -> Tensor:
        """`count` where bounds are known, else every rival; where there is nothing right to find, no K is enough."""
        count = torch.where(self.known, count, (~same).sum(1))
        return torch.where(same.any(1), count, torch.iinfo(torch.int64).max)


@dataclass(frozen=True)
class Sides:
    """1 where a candidate is surely farther than a hit, -1 where surely closer, and how many are of each."""

    sides: Tensor
    """Queries × hits × candidates, or nothing."""
    farther: Tensor
    closer: Tensor

    @classmethod
    def empty(cls, hits: Tensor, candidates: int, keep: bool) -> Sides:
        """All open; the counts still to be made."""
        rows = len(hits) if keep else 0
        sides = torch.zeros(rows, hits.shape[1], candidates, dtype=torch.int8)
        counts = (torch.empty(hits.shape, dtype=torch.int64) for _ in range(2))
        return cls(sides, *counts)


class Pairwise(Apart, ABC):
    """Rankings where what the distance bounds leave open takes a test of its own, unless `plain`."""

    def __init__(self, upper: Tensor, lower: Tensor, terms: int, plain: bool) -> None:
        super().__init__(upper, lower, terms)
        self._plain = plain

    @abstractmethod
    def _compare(self, rows: slice, hits: Tensor, keep: bool) -> Sides:
        """Every candidate against each hit of some queries; with `keep` off, the counts alone."""

    def _counts(self, hits: Tensor) -> tuple[Tensor, Tensor]:
        if self._plain:
            return super()._counts(hits)
        found = self._compare(slice(0, len(hits)), hits, keep=False)
        return found.farther, found.closer

    def _unbeaten(self, same: Tensor) -> Tensor:
        if self._plain:
            return super()._unbeaten(same)
        champions, count = self._champions(same), torch.empty(len(same), dtype=torch.int64)
        for rows in self._blocks(champions):
            beaten = (self._compare(rows, champions[rows], keep=True).sides > 0).any(1)
            count[rows] = self._still_open(rows, champions[rows], ~same[rows] & ~beaten).sum(1)
        return count

    def _still_open(self, rows: slice, champions: Tensor, rivals: Tensor) -> Tensor:
        """Which rivals of some queries remain, of those that no champion beats by `_compare`."""
        return rivals

    def _champions(self, same: Tensor) -> Tensor:
        """The few same-class candidates with the smallest upper distance; -1 where there are fewer."""
        few = min(CHAMPIONS, same.shape[1])
        order = torch.where(same, self.upper, torch.inf).topk(few, dim=1, largest=False).indices
        return torch.where(same.gather(1, order), order, -1)

    def _blocks(self, hits: Tensor) -> Iterator[slice]:
        """Blocks of queries whose sides take no more than 32 MiB (or one query's)."""
        rows = max(1, _SIDES // max(1, hits.shape[1] * self.upper.shape[1]))
        return (slice(start, start + rows) for start in range(0, len(hits), rows))


def given(rank: Tensor | None, hits: Tensor) -> Tensor:
    """The ranks of the hits; in order, if not given."""
    return torch.arange(1, hits.shape[1] + 1).expand_as(hits) if rank is None else rank
