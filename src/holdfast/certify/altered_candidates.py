"""Rank certificates where candidates are altered: all, at most m of them, or the query too.

Kakizaki, Fukuchi, Sakuma, Theorems 3, 4 and 6, and beyond them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from holdfast.bounds import Box, box_distance_bounds, distance_bounds
from holdfast.bounds.threads import in_threads
from holdfast.certify.pairwise import Apart, Pairwise, Sides, given, slack_of
from holdfast.certify.values import RankBounds, rank_bounds
from holdfast.methods import bound_method


class AlteredCandidates(Apart):
    """What an attacker who alters every candidate within its own box can do to rankings for fixed queries.

    Each candidate moves by itself, so c is surely farther than ĉ exactly if lower(c) > upper(ĉ) (Eq. 17
    and 18 with the candidates' boxes; Eq. 11 and 14 print d̲_c(c) where the proof means d̲_q(c)).
    """

    def __init__(self, boxes: Box, queries: Tensor) -> None:
        upper, lower = distance_bounds(boxes.to(torch.float64), queries.double())
        super().__init__(upper.T.contiguous(), lower.T.contiguous(), queries.shape[1])


class FewAlteredCandidates(Apart):
    """What an attacker who alters at most m candidates, of his choice, can do.

    The hit's worst rank is 1 + max(a, b). (a) The hit is left alone: those already as near, and m of
    those that can come as near. (b) The hit is altered, if m ≥ 1, to its farthest: those as near as
    that, and m − 1 of those that can come. The best rank is found in the same way: 1 + the smaller
    of the numbers that stay surely nearer.
    """

    def __init__(self, boxes: Box, candidates: Tensor, queries: Tensor, most: int) -> None:
        bounds = AlteredCandidates(boxes, queries)
        super().__init__(bounds.upper, bounds.lower, queries.shape[1])
        self._most = min(most, len(candidates))
        # The clean distance lies between its bounds also after rounding.
        clean = torch.cdist(
            queries.double(), candidates.double(), compute_mode="donot_use_mm_for_euclid_dist"
        )
        self._clean = torch.minimum(torch.maximum(clean, self.lower), self.upper)

    def ranks(self, hits: Tensor, rank: Tensor | None = None) -> RankBounds:
        """Rank intervals of the hits (candidate numbers, one row a query)."""
        self.check_hits(hits)
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
        return rank_bounds(given(rank, hits), n - 1 - ahead, stay, n, self.known[:, None])

    def unbeaten(self, same: Tensor) -> Tensor:
        """As for all candidates: rivals nearer than the right one that the attacker leaves, and m more.

        With at most m altered, the (m + 1)-th nearest right candidate is left alone or a nearer one is.
        """
        if self._most == 0:
            best = torch.where(same, self._clean, torch.inf).amin(1, keepdim=True)
            return self._settled((~same & ~(best < self._clean)).sum(1), same)
        place = min(self._most, same.shape[1] - 1)
        right = torch.where(same, self._clean, torch.inf).sort(dim=1).values[:, place]
        rivals = (~same & (self._clean <= right[:, None])).sum(1)
        could = (~same & (self.lower <= right[:, None]) & (self._clean > right[:, None])).sum(1)
        few = torch.where(torch.isfinite(right), rivals + could.clamp(max=self._most), same.shape[1])
        return torch.minimum(self._settled(few, same), super().unbeaten(same))


class AlteredBoth(Pairwise):
    """What an attacker who alters the query and every candidate, each within its box, can do.

    The query moves once for all candidates: c is surely farther than ĉ if ‖z − c‖² − ‖z − ĉ‖² is positive
    for every z, c and ĉ of their boxes. Its least value is exact (`kernels.least_lead`).
    `method="paper"` compares the distances between boxes instead, and certifies no more.
    """

    def __init__(self, queries: Box, candidates: Box, method: str = "interval") -> None:
        queries, candidates = queries.to(torch.float64), candidates.to(torch.float64)
        terms = queries.centre.shape[1]
        super().__init__(
            *box_distance_bounds(queries, candidates), terms, plain=not bound_method(method).exact
        )
        upper, lower = distance_bounds(candidates, queries.centre)
        self._boxes = [queries.lower, queries.upper, candidates.centre, candidates.radius, upper.T, lower.T]
        self._share = slack_of(terms)

    def _compare(self, rows: slice, hits: Tensor, keep: bool) -> Sides:
        from holdfast.certify.kernels import both_sides

        low, high, centre, radius, upper, lower = self._boxes
        out = Sides.empty(hits, len(centre), keep)
        boxes = (low[rows], high[rows], centre, radius, upper[rows], lower[rows])
        bounds = (self.upper[rows], self.lower[rows], hits, out.sides, out.farther, out.closer)
        first, rest = ([t.contiguous().numpy() for t in tensors] for tensors in (boxes, bounds))
        size = hits.numel() * len(centre)
        in_threads(lambda a, b: both_sides(*first, self._share, *rest, a, b), len(hits), size)
        return out
