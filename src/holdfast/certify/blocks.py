"""Rank certificates over many candidates, a block at a time: memory for one block, never for all of them.

Whether a candidate is surely farther or closer than a hit is asked of the two alone, so the counts of
blocks add up. The hits themselves go with every block; what they count among each other is taken once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from holdfast.bounds import Box
from holdfast.certify.ranking import FewCandidatesAttack
from holdfast.certify.values import RankBounds

BLOCK = 8192

Slots = NDArray[np.int64]
Distances = tuple[Tensor, Tensor]
"""Upper and lower bounds of the distances to one query."""


class Attack(Protocol):
    """What an attacker can do to the ranks of candidates."""

    def ranks(self, hits: Tensor, rank: Tensor | None = None) -> RankBounds: ...


def ranks_in_blocks(
    attack_on: Callable[[Slots], Attack], hits: Slots, others: Slots, rows: int, candidates: int
) -> RankBounds:
    """Rank intervals of `hits` (nearest first) among themselves and `others`, of `candidates` in all.

    `attack_on` makes the attack on the candidates of some slots. It has one query with all hits, or
    `rows` queries with as many hits each, in order. Candidates left out must be surely farther than
    every hit: they change no count that is made here.
    """
    places = torch.arange(len(hits)).view(rows, -1)
    alone = attack_on(hits).ranks(places, places + 1)
    best, worst, known = alone.best.clone(), alone.worst.clone(), alone.known.clone()
    for first in range(0, len(others), BLOCK):
        part = attack_on(np.concatenate([hits, others[first : first + BLOCK]])).ranks(places, places + 1)
        best += part.best - alone.best
        worst += part.worst - alone.worst
        known &= part.known
    best, worst = torch.where(known, best, 1), torch.where(known, worst, candidates)
    return RankBounds(places + 1, best, worst, known)


def few_in_blocks(
    bounds_on: Callable[[Slots], Distances],
    clean: NDArray[np.float64],
    hits: Slots,
    others: Slots,
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
    attack = FewCandidatesAttack(line, torch.from_numpy(clean)[:, None], torch.zeros(1, 1), most)
    places = torch.arange(len(hits))[None]
    found = attack.ranks(places, places + 1)
    worst = torch.where(found.known, found.worst, candidates)
    return RankBounds(found.rank, found.best, worst, found.known)
