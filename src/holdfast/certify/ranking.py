"""Rank certificates for an altered query: where a hit can and cannot move.

Kakizaki, Fukuchi, Sakuma, "Certified Defense for Content Based Image Retrieval", Theorems 1 to 6. The
boxes come from `bounds`; everything here is float64, so its own rounding lies far below the slack
that each comparison keeps. `method="paper"` compares the bounds of Eq. 17 and 18; `"interval"` takes
the exact minimum over the box and certifies everything that `"paper"` does; `"last-layer"` takes it also
over the box before the last linear layer, and certifies everything that `"interval"` does; `"crown"`
tries backward linear bounds of the whole network on what these leave open.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.bounds import Box, distance_bounds, normalised
from holdfast.bounds.box import LARGEST_NORM
from holdfast.bounds.threads import in_threads
from holdfast.certify.crown import Backward, Candidates, settle_hits, settle_rivals
from holdfast.certify.pairwise import DIVISION, Pairwise, Sides, slack_of
from holdfast.errors import ConfigError, DataError
from holdfast.methods import bound_method


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


class QueryAttack(Pairwise):
    """What an attacker who alters the query within its box can do to rankings of fixed candidates.

    For every z in box i (the query's possible embeddings): c is surely farther than ĉ if
    ‖z − c‖² − ‖z − ĉ‖² = ‖c‖² − ‖ĉ‖² − 2z·(c − ĉ) is positive on the whole box. It is linear in z, so its
    minimum ‖c‖² − ‖ĉ‖² − 2m·(c − ĉ) − 2r·|c − ĉ| is exact.
    """

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
        # Inference divides by no less than 1e-12.
        reach = (box.centre.abs() + box.radius).norm(dim=1).clamp(min=1e-12)
        slack = slack_of(vectors.shape[1]) * (reach + squared.max().sqrt()).square()
        if unit_norm:
            # Candidates of norm 1 are ranked by the sign of z·(c − ĉ), which dividing z by its norm leaves
            # alone; the slack pays for norms that are 1 only up to rounding, and for the rounded division.
            slack = slack + reach * ((squared.max() - squared.min()) + DIVISION)
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
        self.known = torch.isfinite(level).all(1) & torch.isfinite(box.radius).all(1)
        if unit_norm:
            self.known &= reach < LARGEST_NORM

    def _compare(self, rows: slice, hits: Tensor, keep: bool) -> Sides:
        from holdfast.certify.kernels import query_sides

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
