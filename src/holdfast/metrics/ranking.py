"""How a gallery is ranked for each query, and what a ranking is worth, block by block.

Distances are Euclidean, computed in float64. Two squared distances closer than the rounding of that
computation are a tie, and a tie counts against the search: an other-class candidate as near as a
same-class one is ranked before it. So a collapsed embedder, all outputs alike, finds nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.errors import DataError

BLOCK_BYTES = 256 * 2**20
"""The memory that one block of the distance matrix, with its sorted copy, may take."""

_BYTES_PER_PAIR = 96
_LEAST = 1e-300
"""A tie where all distances are zero."""


@dataclass(frozen=True)
class Outcomes:
    """What ranking did for a run of queries; every field's first axis is the query.

    `relevant` counts the same-class candidates. Where it is 0 there is nothing to find: ranks are
    0, distances and scores NaN, and such queries are left out of every mean.
    """

    relevant: Tensor
    first_rank: Tensor
    """Rank of the nearest same-class candidate (1 = nearest); ties count against it."""
    found: Tensor
    """Same-class candidates among the nearest k, one column for each k."""
    average_precision: Tensor
    average_precision_at_r: Tensor
    r_precision: Tensor
    same_distance: Tensor
    """Quantiles of the distances to the same class; column 0 is the nearest."""
    other_distance: Tensor
    searched: Tensor
    """How many candidates were ranked: all but the query itself and those of its own group."""
    top: Tensor
    """Candidate indices, nearest first; -1 where the gallery is exhausted."""
    top_distance: Tensor


class Distances:
    """Distances to one set of candidates, in float64, by a product."""

    def __init__(self, candidates: Tensor) -> None:
        # Distances do not see a shift; without one, far from the origin their digits would cancel.
        self._centre = candidates.double().mean(0)
        self._wide = candidates.double() - self._centre
        self._norms = self._wide.square().sum(1)

    def squared(self, queries: Tensor) -> tuple[Tensor, Tensor]:
        """The squared distances, and for each query (a column) how near two of them are a tie."""
        asked = queries.double() - self._centre
        out = asked.square().sum(1, keepdim=True) + self._norms[None]
        out.addmm_(asked, self._wide.T, alpha=-2)
        reach = (asked.norm(dim=1, keepdim=True) + self._norms.max().sqrt()).square()
        return out.clamp_(min=0), 4 * (asked.shape[1] + 4) * 2.0**-53 * reach + _LEAST


def rank(
    queries: Tensor,
    candidates: Tensor,
    query_labels: Tensor,
    candidate_labels: Tensor,
    *,
    self_match: Tensor | None = None,
    groups: tuple[Tensor, Tensor] | None = None,
    ks: Sequence[int] = (1, 10, 20, 40),
    top: int = 10,
    quantiles: int = 8,
    start: int = 0,
    block_bytes: int = BLOCK_BYTES,
) -> Iterator[tuple[range, Outcomes]]:
    """Rank the candidates for each query from `start` on, in blocks that fit `block_bytes`.

    `self_match[i]` is the candidate that *is* query i, or -1: it is left out of that ranking. So are candidates of the
    query's class and group, where `groups` gives those of queries and candidates (-1: none): the same person seen by
    the same camera, the same burst.
    A k beyond the number of candidates means all of them.
    """
    _check(queries, candidates, query_labels, candidate_labels)
    if any(k < 1 for k in ks):
        raise DataError(f"k must be at least 1, found {min(ks)}")
    n = len(candidates)
    rows = max(1, min(512, block_bytes // (_BYTES_PER_PAIR * n)))
    to_candidates = Distances(candidates)
    if self_match is None:
        self_match = torch.full((len(queries),), -1)
    for first in range(start, len(queries), rows):
        span = range(first, min(first + rows, len(queries)))
        part = slice(span.start, span.stop)
        squared, tie = to_candidates.squared(queries[part])
        relevant = query_labels[part, None] == candidate_labels[None]
        ignored = torch.zeros_like(relevant)
        with_self = torch.nonzero(self_match[part] >= 0).squeeze(1)
        ignored[with_self, self_match[part][with_self]] = True
        if groups is not None:
            asked = groups[0][part, None]
            ignored |= relevant & (asked == groups[1][None]) & (asked >= 0)
        yield span, _outcomes(squared, relevant, tie, ignored, ks, top, quantiles)


def _outcomes(
    squared: Tensor,
    relevant: Tensor,
    tie: Tensor,
    ignored: Tensor,
    ks: Sequence[int],
    top: int,
    quantiles: int,
) -> Outcomes:
    """Everything after the sort works on the places of the same-class candidates alone."""
    queries, n = squared.shape
    relevant &= ~ignored
    size = n - ignored.sum(1)

    # Same-class candidates step back by the rounding error, so that the sort puts ties against us.
    squared += torch.where(relevant, tie, 0.0)
    squared[ignored] = torch.inf
    key, order = squared.sort(dim=1)
    hit = relevant.gather(1, order)

    def distance(place: Tensor) -> Tensor:
        exact = key.gather(1, place) - hit.gather(1, place) * tie
        return exact.clamp_(min=0).sqrt_()

    row, place = hit.nonzero(as_tuple=True)
    count = torch.bincount(row, minlength=queries)
    start = count.cumsum(0) - count
    nth = torch.arange(len(row)) - start[row]
    precision = (nth + 1) / (place + 1).double()
    within_r = place < count[row]
    none = count == 0
    each = torch.arange(queries)[:, None]
    reach = torch.tensor([min(k, n) for k in ks])
    found = torch.searchsorted(row * n + place, each * n + reach) - start[:, None]

    wanted = _levels(count, quantiles)
    same = place[(start[:, None] + wanted).clamp(max=max(len(place) - 1, 0))] if len(place) else wanted
    # place − nth counts the others before a hit: the m-th other stands after as many hits as have ≤ m.
    wanted = _levels(size - count, quantiles)
    before = (
        torch.searchsorted(row * (n + 1) + place - nth, each * (n + 1) + wanted, right=True) - start[:, None]
    )
    other = (wanted + before).clamp(max=n - 1)

    shown = torch.arange(min(top, n))[None].expand(queries, -1)
    listed = shown < size[:, None]
    return Outcomes(
        relevant=count,
        first_rank=torch.where(none, 0, same[:, 0] + 1),
        found=found,
        average_precision=_sum_by(row, precision, queries) / count,
        average_precision_at_r=_sum_by(row[within_r], precision[within_r], queries) / count,
        r_precision=torch.bincount(row[within_r], minlength=queries) / count.double(),
        same_distance=distance(same).masked_fill(none[:, None], torch.nan),
        other_distance=distance(other).masked_fill((size == count)[:, None], torch.nan),
        searched=size,
        top=torch.where(listed, order[:, : shown.shape[1]], -1),
        top_distance=distance(shown.contiguous()).masked_fill(~listed, torch.nan),
    )


def _sum_by(row: Tensor, values: Tensor, rows: int) -> Tensor:
    return torch.zeros(rows, dtype=values.dtype).index_add_(0, row, values)


def _levels(count: Tensor, quantiles: int) -> Tensor:
    """Places among `count` things: the first, then `quantiles` of them at evenly spaced levels."""
    levels = (torch.arange(quantiles, dtype=torch.float64) + 0.5) / quantiles
    return torch.cat([torch.zeros(len(count), 1), levels * count[:, None]], 1).floor_().long()


def _check(queries: Tensor, candidates: Tensor, query_labels: Tensor, candidate_labels: Tensor) -> None:
    if len(candidates) == 0 or len(queries) == 0:
        raise DataError(f"nothing to rank: {len(queries)} queries, {len(candidates)} candidates")
    if queries.shape[1] != candidates.shape[1]:
        raise DataError(f"queries have {queries.shape[1]} dimensions, candidates {candidates.shape[1]}")
    if len(query_labels) != len(queries) or len(candidate_labels) != len(candidates):
        raise DataError("labels and embeddings differ in number")
    if not (torch.isfinite(queries).all() and torch.isfinite(candidates).all()):
        raise DataError("the embeddings contain NaN or infinity: the embedder is broken on some image")
