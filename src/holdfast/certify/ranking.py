"""Rank certificates from boxes of embeddings: where a hit can and cannot move.

Kakizaki, Fukuchi, Sakuma, "Certified Defense for Content Based Image Retrieval", Theorems 1 to 6. The
boxes come from `bounds`; everything here is float64, so its own rounding lies far below the slack
that each comparison keeps. `method="paper"` compares the bounds of Eq. 17 and 18; `"interval"` takes
the exact minimum over the box and certifies everything that `"paper"` does; `"elided"` takes it also
over the box before the last linear layer, and certifies everything that `"interval"` does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from holdfast.bounds import Box, box_distance_bounds, distance_bounds, normalised
from holdfast.bounds.threads import in_threads
from holdfast.certify.values import RankBounds, rank_bounds
from holdfast.errors import ConfigError

Method = Literal["paper", "interval", "elided"]
CHAMPIONS = 8
"""Same-class candidates that are tried against each rival; any subset is sound."""

_SLACK = 2.0**-40
_DIVISION = 2.0**-17


def nearest(queries: Tensor, candidates: Tensor, k: int) -> Tensor:
    """The k nearest candidates of each query, nearest first; equal distances by position."""
    distance = torch.cdist(queries.double(), candidates.double(), compute_mode="donot_use_mm_for_euclid_dist")
    return distance.sort(dim=1, stable=True).indices[:, :k]


@dataclass(frozen=True)
class LastLayer:
    """A network's last layer z = Wh + b, the box of h, and how much float32 inference of z may err."""

    hidden: Box
    weight: Tensor
    bias: Tensor | None
    error: Tensor


class QueryAttack:
    """What an attacker who alters the query within its box can do to rankings of fixed candidates.

    For every z in box i (the query's possible embeddings): c is surely farther than ĉ if
    ‖z − c‖² − ‖z − ĉ‖² = ‖c‖² − ‖ĉ‖² − 2z·(c − ĉ) is positive on the whole box. It is linear in z, so its
    minimum ‖c‖² − ‖ĉ‖² − 2m·(c − ĉ) − 2r·|c − ĉ| is exact.
    """

    def __init__(
        self,
        box: Box,
        candidates: Tensor,
        method: Method = "interval",
        *,
        unit_norm: bool = False,
        last: LastLayer | None = None,
    ) -> None:
        if method == "elided" and last is None:
            raise ConfigError("the elided method needs a network whose last layer is linear")
        box = box.to(torch.float64)
        vectors = candidates.double().contiguous()
        self._method = method
        self._size = len(vectors)
        squared = vectors.square().sum(1)
        # Inference divides by no less than 1e-12.
        reach = (box.centre.abs() + box.radius).norm(dim=1).clamp(min=1e-12)
        slack = _SLACK * (reach + squared.max().sqrt()).square()
        self._upper, self._lower = _widened(*distance_bounds(normalised(box) if unit_norm else box, vectors))
        if unit_norm:
            # Candidates of norm 1 are ranked by the sign of z·(c − ĉ), which dividing z by its norm leaves
            # alone; the slack pays for norms that are 1 only up to rounding, and for the rounded division.
            slack = slack + reach * ((squared.max() - squared.min()) + _DIVISION)
            squared = torch.zeros_like(squared)
        self._tests = [
            box.radius,
            vectors,
            torch.addmm(squared[None], box.centre, vectors.T, alpha=-2),
            slack,
        ]
        if method == "elided" and last is not None:
            self._tests += _before_last(last, vectors, squared, slack)
        else:
            nothing = box.radius.new_zeros
            self._tests += [
                nothing(len(box), 0),
                nothing(len(vectors), 0),
                nothing(len(box), 0),
                nothing(len(box)),
            ]
        self.known = torch.isfinite(self._tests[2]).all(1) & torch.isfinite(box.radius).all(1)

    def ranks(self, hits: Tensor, rank: Tensor | None = None) -> RankBounds:
        """Rank intervals of the hits (candidate numbers, one row a query)."""
        n = self._size
        if self._method == "paper":
            farther, closer = _count_apart(self._upper, self._lower, hits)
        else:
            farther, closer = self._count(hits)
        return rank_bounds(_given(rank, hits), farther, closer, n, self.known[:, None])

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
        out = torch.empty(len(same), dtype=torch.int64)
        t = (*self._tests, upper, lower, ~same, _champions(upper, same), out)
        arrays = [x.contiguous().numpy() for x in t]
        in_threads(lambda a, b: count_unbeaten(*arrays, a, b), len(same), same.numel())
        return _settled(out, same, self.known)

    def _count(self, hits: Tensor) -> tuple[Tensor, Tensor]:
        from holdfast.bounds.kernels import count_sure

        farther = torch.empty(hits.shape, dtype=torch.int64)
        closer = torch.empty_like(farther)
        arrays = [
            x.contiguous().numpy() for x in (*self._tests, self._upper, self._lower, hits, farther, closer)
        ]
        in_threads(lambda a, b: count_sure(*arrays, a, b), len(hits), hits.numel() * self._size)
        return farther, closer


def _before_last(last: LastLayer, vectors: Tensor, squared: Tensor, slack: Tensor) -> list[Tensor]:
    """The test over the box of h: z·(c − ĉ) = h·Wᵀ(c − ĉ) + b·(c − ĉ), so W goes to the candidates' side.

    What inference errs in z moves the comparison by at most 2‖error‖·‖c − ĉ‖.
    """
    hidden, weight = last.hidden.to(torch.float64), last.weight.double()
    seen = (vectors @ weight).contiguous()
    level = torch.addmm(squared[None], hidden.centre, seen.T, alpha=-2)
    if last.bias is not None:
        level = level - 2 * (vectors @ last.bias.double())[None]
    apart = 2 * (vectors - vectors.mean(0)).norm(dim=1).max()
    reach = (hidden.centre.abs() + hidden.radius).norm(dim=1) * seen.norm(dim=1).max()
    return [hidden.radius, seen, level, slack + 2 * last.error.norm(dim=1) * apart + _SLACK * reach]


class _Apart:
    """Rankings where each distance is bounded by itself: rows are queries, columns candidates."""

    def __init__(self, upper: Tensor, lower: Tensor) -> None:
        self.upper, self.lower = _widened(upper, lower)
        self.known = torch.isfinite(upper).all(1) & torch.isfinite(lower).all(1)

    def ranks(self, hits: Tensor, rank: Tensor | None = None) -> RankBounds:
        """Rank intervals of the hits (candidate numbers, one row a query)."""
        farther, closer = _count_apart(self.upper, self.lower, hits)
        return rank_bounds(_given(rank, hits), farther, closer, self.upper.shape[1], self.known[:, None])

    def unbeaten(self, same: Tensor) -> Tensor:
        """As `QueryAttack.unbeaten`."""
        return _unbeaten(self.upper, self.lower, same, self.known)


class CandidateAttack(_Apart):
    """What an attacker who alters every candidate within its own box can do to rankings for fixed queries.

    Each candidate moves by itself, so c is surely farther than ĉ exactly if lower(c) > upper(ĉ) (Eq. 17
    and 18 with the candidates' boxes; Eq. 11 and 14 print d̲_c(c) where the proof means d̲_q(c)).
    """

    def __init__(self, boxes: Box, queries: Tensor) -> None:
        upper, lower = distance_bounds(boxes.to(torch.float64), queries.double())
        super().__init__(upper.T.contiguous(), lower.T.contiguous())


class FewCandidatesAttack(_Apart):
    """What an attacker who alters at most m candidates, of his choice, can do.

    The hit's worst rank is 1 + max(a, b). (a) The hit is left alone: those already as near, and m of
    those that can come as near. (b) The hit is altered, if m ≥ 1, to its farthest: those as near as
    that, and m − 1 of those that can come. The best rank is found in the same way: 1 + the smaller
    of the numbers that stay surely nearer.
    """

    def __init__(self, boxes: Box, candidates: Tensor, queries: Tensor, most: int) -> None:
        bounds = CandidateAttack(boxes, queries)
        super().__init__(bounds.upper, bounds.lower)
        self._most = most
        # The clean distance lies between its bounds also after rounding.
        clean = torch.cdist(
            queries.double(), candidates.double(), compute_mode="donot_use_mm_for_euclid_dist"
        )
        self._clean = torch.minimum(torch.maximum(clean, self.lower), self.upper)

    def ranks(self, hits: Tensor, rank: Tensor | None = None) -> RankBounds:
        """Rank intervals of the hits (candidate numbers, one row a query)."""
        m, n = self._most, self.upper.shape[1]
        own, high, low = (t.gather(1, hits) for t in (self._clean, self.upper, self.lower))
        clean, upper, lower = (t.sort(dim=1).values for t in (self._clean, self.upper, self.lower))

        def to(values: Tensor, x: Tensor, right: bool) -> Tensor:
            return torch.searchsorted(values, x.contiguous(), right=right)

        # Each count holds the hit itself once: its own distance is ≤ x, its lower bound too.
        as_near = to(clean, own, True) - 1
        ahead = as_near + (to(lower, own, True) - 1 - as_near).clamp(max=m)
        behind = to(clean, own, False)
        stay = behind - (behind - to(upper, own, False)).clamp(min=0, max=m)
        if m >= 1:
            as_near = to(clean, high, True) - 1
            ahead = torch.maximum(ahead, as_near + (to(lower, high, True) - 1 - as_near).clamp(max=m - 1))
            behind = to(clean, low, False)
            moved = behind - (behind - to(upper, low, False)).clamp(min=0, max=m - 1)
            stay = torch.minimum(stay, moved)
        return rank_bounds(_given(rank, hits), n - 1 - ahead, stay, n, self.known[:, None])

    def unbeaten(self, same: Tensor) -> Tensor:
        """As `QueryAttack.unbeaten`: rivals nearer than the right one that the attacker leaves, and m more.

        With at most m altered, the (m + 1)-th nearest right candidate is left alone or a nearer one is.
        """
        if self._most == 0:
            return _unbeaten(self._clean, self._clean, same, self.known)
        place = min(self._most, same.shape[1] - 1)
        right = torch.where(same, self._clean, torch.inf).sort(dim=1).values[:, place]
        rivals = (~same & (self._clean <= right[:, None])).sum(1)
        could = (~same & (self.lower <= right[:, None]) & (self._clean > right[:, None])).sum(1)
        few = torch.where(torch.isfinite(right), rivals + could.clamp(max=self._most), same.shape[1])
        return torch.minimum(
            _settled(few, same, self.known), _unbeaten(self.upper, self.lower, same, self.known)
        )


class BothAttack(_Apart):
    """What an attacker who alters the query and every candidate, each within its box, can do.

    Distances between two boxes, coordinate by coordinate; the query moves once for all candidates,
    which these bounds do not use, so they are sound and not exact.
    """

    def __init__(self, queries: Box, candidates: Box) -> None:
        super().__init__(*box_distance_bounds(queries.to(torch.float64), candidates.to(torch.float64)))


def _given(rank: Tensor | None, hits: Tensor) -> Tensor:
    return torch.arange(1, hits.shape[1] + 1).expand_as(hits) if rank is None else rank


def _widened(upper: Tensor, lower: Tensor) -> tuple[Tensor, Tensor]:
    """Distance bounds with room for the rounding of their own sums, far below anything that counts."""
    return upper * (1 + _SLACK), lower * (1 - _SLACK)


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
