"""Rank certificates over many altered candidates without a copy of all of them.

Whether a candidate is surely farther or closer than a hit is asked of the two alone, so counts over
parts of a gallery add up. Candidates that are surely farther than every hit may be left out: they
change no count that is made here.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from holdfast import deadline
from holdfast.bounds import Box
from holdfast.certify.altered_candidates import FewAlteredCandidates
from holdfast.certify.values import Alteration, RankBounds, settled

BLOCK = 8192

Slots = NDArray[np.int64]
Distances = tuple[Tensor, Tensor]
"""Upper and lower bounds of the distances to one query."""


def ranks_in_blocks(
    altered: Callable[[Slots], Alteration], hits: Slots, others: Slots, rank: Tensor, candidates: int
) -> RankBounds:
    """Rank intervals of one query's `hits` among themselves and `others`, of `candidates` in all.

    `altered` makes what altering can do to the candidates of some slots. The hits go with every block of the
    others; what they count among each other is taken once.
    """
    places = torch.arange(len(hits))[None]
    alone = altered(hits).ranks(places, places + 1)
    best, worst, known = alone.best.clone(), alone.worst.clone(), alone.known.clone()
    for first in range(0, len(others), BLOCK):
        deadline.check()
        part = altered(np.concatenate([hits, others[first : first + BLOCK]])).ranks(places, places + 1)
        best += part.best - alone.best
        worst += part.worst - alone.worst
        known &= part.known
    return settled(rank, best, worst, known, candidates)


def few_in_blocks(
    bounds_on: Callable[[Slots], Distances],
    clean: NDArray[np.float64],
    hits: Slots,
    others: Slots,
    rank: Tensor,
    most: int,
    candidates: int,
) -> RankBounds:
    """As `ranks_in_blocks`, for an attacker who alters at most `most` candidates.

    His choice couples all candidates, but only their distances matter: `clean`, of the hits and then
    of the others, and the bounds that `bounds_on` gives. So each is put on a line, with the query at 0.
    """
    slots = np.concatenate([hits, others])
    parts = [bounds_on(slots[first : first + BLOCK]) for first in range(0, len(slots), BLOCK)]
    upper, lower = (torch.cat(half)[:, None] for half in zip(*parts, strict=True))
    line = Box((upper + lower) / 2, (upper - lower) / 2)
    few = FewAlteredCandidates(line, torch.from_numpy(clean)[:, None], torch.zeros(1, 1), most)
    found = few.ranks(torch.arange(len(hits))[None], rank)
    return settled(rank, found.best, found.worst, found.known, candidates)
