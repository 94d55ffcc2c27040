"""Rank certificates for an altered query: where a hit can and cannot move.

The theorem (Kakizaki, Fukuchi, Sakuma, "Certified Defense for Content Based Image Retrieval", Theorems 1 to 6): let
the query's embedding z be anywhere in the box m ± r. Candidate c is surely farther than ĉ if
‖z − c‖² − ‖z − ĉ‖² = ‖c‖² − ‖ĉ‖² − 2z·(c − ĉ) is positive on the whole box. It is linear in z, so its minimum
‖c‖² − ‖ĉ‖² − 2m·(c − ĉ) − 2r·|c − ĉ| is exact. A hit's rank is then between 1 + the number that is surely closer and
N − the number that is surely farther. No failure probability; images in [0, 1] within linf:eps.

`AlteredQuery` counts for many queries, by any method; `query_ranks` for one query's box in one pass over vectors that
lie where they are. Both keep the slack of `_Room` for rounding and sum by `kernels.most_moved`. The boxes come from
`bounds`; everything here is float64, so its own rounding lies far below the slack. Method `paper` compares the bounds
of Eq. 17 and 18 instead; `interval` is the theorem, and certifies everything that `paper` does; `last-layer` takes the
minimum also over the box before the last linear layer, and certifies everything that `interval` does; `crown`
tries backward linear bounds of the whole network on what these leave open.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from threading import Lock

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from holdfast.bounds import Box, distance_bounds, normalised
from holdfast.bounds.box import LARGEST_NORM
from holdfast.bounds.threads import in_threads
from holdfast.errors import ConfigError, DataError
from holdfast.methods import bound_method
from holdfast.proofs.crown import Backward, Candidates, settle_hits, settle_rivals
from holdfast.proofs.pairwise import DIVISION, Pairwise, Sides, slack_of
from holdfast.proofs.values import RankBounds, settled


def nearest(queries: Tensor, candidates: Tensor, k: int) -> Tensor:
    """The k nearest candidates of each query, nearest first; equal distances by position."""
    distance = torch.cdist(queries.double(), candidates.double(), compute_mode="donot_use_mm_for_euclid_dist")
    return distance.sort(dim=1, stable=True).indices[:, :k]


Slots = NDArray[np.int64]


@dataclass(frozen=True)
class LastLayer:
    """A network's last layer z = Wh + b, the box of h, and how much float32 inference of z may err."""

    hidden: Box
    weight: Tensor
    bias: Tensor | None
    error: Tensor


@dataclass(frozen=True)
class _Room:
    """What each comparison of a query keeps for rounding; `reach` bounds the length of its features."""

    reach: Tensor
    slack: Tensor
    known: Tensor

    @classmethod
    def of(cls, box: Box, max_norm: float, unit_norm: bool) -> _Room:
        """For candidates that are no longer than `max_norm`.

        Candidates of norm 1 are ranked by the sign of z·(c − ĉ), which dividing z by its norm leaves alone; the
        slack pays for the rounded division, and whoever compares pays for norms that are 1 only up to rounding.
        """
        # Inference divides by no less than 1e-12.
        reach = (box.centre.abs() + box.radius).norm(dim=1).clamp(min=1e-12)
        slack = slack_of(box.centre.shape[1]) * (reach + max_norm).square()
        known = torch.isfinite(reach)
        if unit_norm:
            slack, known = slack + reach * DIVISION, known & (reach < LARGEST_NORM)
        return cls(reach, slack, known)


class AlteredQuery(Pairwise):
    """What altering queries within their boxes can do to rankings of fixed candidates, any method."""

    def __init__(
        self,
        box: Box,
        candidates: Tensor,
        method: str = "interval",
        *,
        unit_norm: bool = False,
        last: LastLayer | None = None,
        backward: Backward | None = None,
    ) -> None:
        how = bound_method(method)
        if not len(candidates):
            raise DataError("there are no candidates to rank")
        if how.linear and backward is None:
            raise ConfigError("method crown needs linear bounds of the queries' features")
        box = box.to(torch.float64)
        vectors = candidates.double().contiguous()
        bounds = distance_bounds(normalised(box) if unit_norm else box, vectors)
        super().__init__(*bounds, vectors.shape[1], plain=not how.exact)
        squared = vectors.square().sum(1)
        room = _Room.of(box, float(squared.max().sqrt()), unit_norm)
        slack = room.slack
        if unit_norm:
            # Candidates are compared as if of one norm; what they differ by is paid for here.
            slack = slack + room.reach * (squared.max() - squared.min())
            squared = torch.zeros_like(squared)
        level = torch.addmm(squared[None], box.centre, vectors.T, alpha=-2)
        self._candidates = Candidates(vectors, squared, slack)
        self._tests = [box.radius, level, slack]
        self._wide_vectors = vectors[:, :0]
        if last is not None and how.last_layer:
            self._wide_vectors, *wide = _before_last(last, vectors, squared, slack)
            self._tests += wide
        else:
            self._tests += [box.radius[:, :0], level[:, :0], slack]
        self._backward = backward if how.linear else None
        self.known = torch.isfinite(level).all(1) & room.known

    def _compare(self, rows: slice, hits: Tensor, keep: bool) -> Sides:
        from holdfast.proofs.kernels import query_sides

        vectors = self._candidates.vectors
        radius, level, slack, wide_radius, wide_level, wide_slack = (t[rows] for t in self._tests)
        out = Sides.empty(hits, len(vectors), keep)
        tests = (radius, vectors, level, slack, wide_radius, self._wide_vectors, wide_level, wide_slack)
        bounds = (self.upper[rows], self.lower[rows], hits, out.sides, out.farther, out.closer)
        arrays = [t.contiguous().numpy() for t in (*tests, *bounds)]
        in_threads(lambda a, b: query_sides(*arrays, a, b), len(hits), hits.numel() * len(vectors))
        return out

    def _counts(self, hits: Tensor) -> tuple[Tensor, Tensor]:
        if self._backward is None:
            return super()._counts(hits)
        farther, closer = torch.empty_like(hits), torch.empty_like(hits)
        for rows in self._blocks(hits):
            sides = self._compare(rows, hits[rows], keep=True).sides
            for i, query in self._known(rows):
                settle_hits(self._backward, self._candidates, query, hits[rows][i], sides[i])
            farther[rows], closer[rows] = (sides > 0).sum(2), (sides < 0).sum(2)
        return farther, closer

    def _still_open(self, rows: slice, champions: Tensor, rivals: Tensor) -> Tensor:
        if self._backward is not None:
            for i, query in self._known(rows):
                settle_rivals(self._backward, self._candidates, query, champions[i], rivals[i])
        return rivals

    def _known(self, rows: slice) -> Iterator[tuple[int, int]]:
        """The queries of a block whose bounds are finite: their place and number."""
        return ((i, rows.start + i) for i, known in enumerate(self.known[rows].tolist()) if known)


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
    return [
        seen,
        hidden.radius,
        level,
        slack + 2 * last.error.norm(dim=1) * apart + slack_of(weight.shape[1]) * reach,
    ]


def query_ranks(
    box: Box,
    vectors: NDArray[np.float32],
    hits: Slots,
    others: Slots,
    rank: Tensor,
    candidates: int,
    *,
    max_norm: float,
    unit_norm: bool,
) -> RankBounds:
    """The intervals of `hits` among themselves and `others`, numbers of `vectors`, for one box, in one pass.

    `max_norm` is at least every vector's norm. For unit norms each pair pays for the norms of its own two.
    """
    from holdfast.proofs.kernels import count_sure_of_one

    centre, radius = (t[0].double().contiguous().numpy() for t in (box.centre, box.radius))
    room = _Room.of(box.to(torch.float64), max_norm, unit_norm)
    if not bool(room.known[0]):
        return settled(rank, rank, rank, torch.zeros_like(rank, dtype=torch.bool), candidates)
    reach, slack = float(room.reach[0]), float(room.slack[0])
    own = vectors[hits].astype(np.float64)
    level = -2 * own @ centre if unit_norm else np.square(own - centre).sum(axis=1)
    square, spread = np.square(own).sum(axis=1), np.abs(own - own[0]) @ radius
    farther, closer = np.zeros(len(hits), dtype=np.int64), np.zeros(len(hits), dtype=np.int64)
    lock = Lock()

    def count(slots: Slots, first: int, last: int) -> None:
        far, near = np.zeros_like(farther), np.zeros_like(closer)
        box_and_slack = (centre, radius, reach, slack, unit_norm)
        count_sure_of_one(*box_and_slack, vectors, slots, own, level, square, spread, far, near, first, last)
        with lock:
            farther[:] += far
            closer[:] += near

    # A hit is neither farther nor closer than itself.
    count(hits, 0, len(hits))
    in_threads(lambda first, last: count(others, first, last), len(others), len(others) * len(hits))
    size = len(hits) + len(others)
    best, worst = 1 + torch.from_numpy(closer)[None], size - torch.from_numpy(farther)[None]
    return RankBounds(rank, best, worst, torch.ones_like(rank, dtype=torch.bool))
