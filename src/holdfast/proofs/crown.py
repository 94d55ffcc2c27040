"""The dearest test of an altered query: backward linear bounds, for pairs that cheaper tests leave open.

"c stays farther than ĉ" is ‖c‖² − ‖ĉ‖² + 2z·(ĉ − c) > 0, so the specification ĉ − c is carried back through the
whole network. Each pair costs about a forward pass, so only those are tried that can change an answer. First the lines
at activations follow from interval bounds; what that leaves open is tried again with lines from linear bounds, which
take more time and nearly always prove more. Neither proves all that the other does, so what either proves counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

PAIRS = 256


@dataclass(frozen=True)
class Backward:
    """Linear bounds of the queries' unnormalised features."""

    clean: Tensor
    """The features of the unaltered queries: only what is true of them can be true of the whole box."""
    lower: Callable[[int, Tensor], Tensor]
    """For a query's number and specifications (rows), a lower bound of each over its box; -inf where unknown."""
    ks: Sequence[int] | None = None
    """The Ks that are asked about; a hit that is settled at its K needs no more work. None asks everything."""
    pairs: int = PAIRS
    """At most so many pairs are tried for the hits of a query, and again for the rivals of its class."""
    tighter: Callable[[int, Tensor], Tensor] | None = None
    """As `lower`, by dearer bounds: asked about what that leaves open."""


@dataclass(frozen=True)
class Candidates:
    """What the comparison needs: vectors, the squared norms (zero for unit vectors), and each query's slack."""

    vectors: Tensor
    squared: Tensor
    slack: Tensor

    def levels(self, features: Tensor) -> Tensor:
        """‖z − c‖² − ‖z‖² for the given z and every candidate; without ‖c‖² for unit vectors."""
        return self.squared - 2 * (self.vectors @ features.double())


def settle_hits(backward: Backward, candidates: Candidates, query: int, hits: Tensor, sides: Tensor) -> None:
    """Decide open pairs of one query's hits, in place in `sides` (hits × candidates).

    Hits that the cheaper tests settled at the next asked K, both ways, are left; of the rest those with
    the fewest open pairs come first, each whole, as long as `pairs` lasts.
    """
    level = candidates.levels(backward.clean[query])
    side = (level[None] - level[hits][:, None]).sign()
    unsure = (sides == 0) & (side != 0)
    count = unsure.sum(1)
    rank = 1 + (side < 0).sum(1)
    if backward.ks is not None:
        count = torch.where(_settled(backward.ks, rank, sides), 0, count)
    order = torch.where(count > 0, count, backward.pairs + 1).argsort(stable=True)
    chosen = order[count[order].cumsum(0) <= backward.pairs]
    chosen = chosen[count[chosen] > 0]
    place, other = unsure[chosen].nonzero(as_tuple=True)
    if not len(place):
        return
    place = chosen[place]
    way = side[place, other]
    sure = _proved(backward, candidates, query, hits[place], other, way)
    sides[place[sure], other[sure]] = way[sure].to(sides.dtype)


def settle_rivals(
    backward: Backward, candidates: Candidates, query: int, champions: Tensor, rivals: Tensor
) -> None:
    """Take from one query's `rivals` (a mask, in place) those that its most promising champion surely beats."""
    count, champions = int(rivals.sum()), champions[champions >= 0]
    least = 1 if backward.ks is None else min(backward.ks)
    if not len(champions) or not least <= count <= backward.pairs:
        return
    other = rivals.nonzero()[:, 0]
    level = candidates.levels(backward.clean[query])
    apart = torch.cdist(candidates.vectors[other], candidates.vectors[champions]).clamp(min=1e-30)
    lead = (level[other][:, None] - level[champions][None]) / apart
    own = champions[lead.argmax(1)]
    sure = _proved(backward, candidates, query, own, other, torch.ones(count, dtype=level.dtype))
    rivals[other[sure]] = False


def _settled(ks: Sequence[int], rank: Tensor, sides: Tensor) -> Tensor:
    """Whether nothing asked about a hit is open: it stays within the next K, and moves by at most K − rank."""
    asked = torch.tensor(sorted(ks))
    place = torch.searchsorted(asked, rank)
    limit = asked[place.clamp(max=len(asked) - 1)]
    down = sides.shape[1] - (sides > 0).sum(1) <= limit
    up = rank - 1 - (sides < 0).sum(1) <= limit - rank
    return (down & up) | (place == len(asked))


def _proved(
    backward: Backward, candidates: Candidates, query: int, own: Tensor, other: Tensor, way: Tensor
) -> Tensor:
    """Whether each `other` is surely farther than its `own` (way 1) or surely closer (way -1)."""
    spec = way[:, None] * (candidates.vectors[own] - candidates.vectors[other])
    sure = torch.zeros(len(own), dtype=torch.bool)
    for bounds in (backward.lower, backward.tighter):
        still = (~sure).nonzero()[:, 0]
        if bounds is None or not len(still):
            break
        least = bounds(query, spec[still]).to(spec.dtype)
        sure[still] = _surely(candidates, query, own[still], other[still], way[still], least)
    return sure


def _surely(
    candidates: Candidates, query: int, own: Tensor, other: Tensor, way: Tensor, least: Tensor
) -> Tensor:
    """Whether the lead of each pair is above what rounding can take, with z·(ĉ − c) at its least."""
    lead = way * (candidates.squared[other] - candidates.squared[own]) + 2 * least
    return lead > candidates.slack[query]
