"""Rank certificates over many candidates without a copy of all of them.

Whether a candidate is surely farther or closer than a hit is asked of the two alone, so counts over
parts of a gallery add up. Candidates that are surely farther than every hit may be left out: they
change no count that is made here.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from holdfast import deadline
from holdfast.bounds import Box
from holdfast.bounds.box import LARGEST_NORM
from holdfast.bounds.threads import in_threads
from holdfast.certify.candidates import FewCandidatesAttack
from holdfast.certify.pairwise import DIVISION, slack_of
from holdfast.certify.values import RankBounds

BLOCK = 8192

Slots = NDArray[np.int64]
Distances = tuple[Tensor, Tensor]
"""Upper and lower bounds of the distances to one query."""


class Attack(Protocol):
    """What an attacker can do to the ranks of candidates."""

    def ranks(self, hits: Tensor, rank: Tensor | None = None) -> RankBounds: ...


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
    """As `QueryAttack` says of the candidates `hits` and `others` among `vectors`, for one box, in one pass.

    `max_norm` is at least every vector's norm. The slack is that of `QueryAttack`, where for unit norms
    each pair pays for the norms of its own two; the distance bounds, which it tries first, certify
    nothing beyond that slack.
    """
    from holdfast.certify.kernels import count_sure_of_one

    centre, radius = (t[0].double().contiguous().numpy() for t in (box.centre, box.radius))
    # Inference divides by no less than 1e-12.
    reach = max(float(np.linalg.norm(np.abs(centre) + radius)), 1e-12)
    if not (np.isfinite(reach) and (reach < LARGEST_NORM or not unit_norm)):
        unknown = torch.zeros_like(rank, dtype=torch.bool)
        return _settled(rank, rank, rank, unknown, candidates)
    slack = slack_of(len(centre)) * (reach + max_norm) ** 2 + (reach * DIVISION if unit_norm else 0.0)
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


def ranks_in_blocks(
    attack_on: Callable[[Slots], Attack], hits: Slots, others: Slots, rank: Tensor, candidates: int
) -> RankBounds:
    """Rank intervals of one query's `hits` among themselves and `others`, of `candidates` in all.

    `attack_on` makes the attack on the candidates of some slots. The hits go with every block of the
    others; what they count among each other is taken once.
    """
    places = torch.arange(len(hits))[None]
    alone = attack_on(hits).ranks(places, places + 1)
    best, worst, known = alone.best.clone(), alone.worst.clone(), alone.known.clone()
    for first in range(0, len(others), BLOCK):
        deadline.check()
        part = attack_on(np.concatenate([hits, others[first : first + BLOCK]])).ranks(places, places + 1)
        best += part.best - alone.best
        worst += part.worst - alone.worst
        known &= part.known
    return _settled(rank, best, worst, known, candidates)


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
    attack = FewCandidatesAttack(line, torch.from_numpy(clean)[:, None], torch.zeros(1, 1), most)
    found = attack.ranks(torch.arange(len(hits))[None], rank)
    return _settled(rank, found.best, found.worst, found.known, candidates)


def _settled(rank: Tensor, best: Tensor, worst: Tensor, known: Tensor, candidates: int) -> RankBounds:
    """Where nothing is known, any rank of all candidates is possible."""
    return RankBounds(rank, torch.where(known, best, 1), torch.where(known, worst, candidates), known)
