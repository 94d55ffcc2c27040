"""The inner loops of the pair bounds, compiled on first use: no B×N×d temporary exists anywhere.

Sums are reordered for speed (`reassoc`, `contract`), but NaN and infinity keep their meaning, so a
broken bound stays visible. Each loop works on a range of rows, so that threads share the work.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
from numpy.typing import NDArray

Floats = NDArray[Any]
Kernel = Callable[..., Any]


def _compile(function: Kernel) -> Kernel:
    fast = {"reassoc", "contract", "nsz", "arcp"}
    compiled: Kernel = numba.njit(cache=True, nogil=True, fastmath=fast)(function)
    return compiled


@_compile
def squared_bounds(
    centre: Floats, radius: Floats, vectors: Floats, upper: Floats, lower: Floats, first: int, last: int
) -> None:
    """Squares of the upper and lower distances (Eq. 17, 18) of the boxes `first`… to every vector."""
    zero = centre.dtype.type(0)
    for i in range(first, last):
        for j in range(vectors.shape[0]):
            high = zero
            low = zero
            for k in range(vectors.shape[1]):
                gap = abs(centre[i, k] - vectors[j, k])
                far = gap + radius[i, k]
                near = max(gap - radius[i, k], zero)
                high += far * far
                low += near * near
            upper[i, j] = high
            lower[i, j] = low


@_compile
def squared_box_bounds(
    centre: Floats,
    radius: Floats,
    others: Floats,
    spreads: Floats,
    upper: Floats,
    lower: Floats,
    first: int,
    last: int,
) -> None:
    """Squares of the upper and lower distances of the boxes `first`… to every other box."""
    zero = centre.dtype.type(0)
    for i in range(first, last):
        for j in range(others.shape[0]):
            high = zero
            low = zero
            for k in range(others.shape[1]):
                gap = abs(centre[i, k] - others[j, k])
                reach = radius[i, k] + spreads[j, k]
                far = gap + reach
                near = max(gap - reach, zero)
                high += far * far
                low += near * near
            upper[i, j] = high
            lower[i, j] = low


@_compile
def box_gradients(
    centre: Floats,
    radius: Floats,
    vectors: Floats,
    high: Floats,
    low: Floats,
    at_centre: Floats,
    at_radius: Floats,
    first: int,
    last: int,
) -> None:
    """Gradients at the boxes; `high`, `low` are the gradients at the distances over the distances."""
    zero = centre.dtype.type(0)
    for i in range(first, last):
        for k in range(vectors.shape[1]):
            at_centre[i, k] = zero
            at_radius[i, k] = zero
        for j in range(vectors.shape[0]):
            up = high[i, j]
            down = low[i, j]
            if up == zero and down == zero:
                continue
            for k in range(vectors.shape[1]):
                step = centre[i, k] - vectors[j, k]
                gap = abs(step)
                far = up * (gap + radius[i, k])
                near = down * max(gap - radius[i, k], zero)
                both = far + near
                at_centre[i, k] += both if step > zero else (-both if step < zero else zero)
                at_radius[i, k] += far - near


@_compile
def vector_gradients(
    centre: Floats,
    radius: Floats,
    vectors: Floats,
    high: Floats,
    low: Floats,
    at_vectors: Floats,
    first: int,
    last: int,
) -> None:
    """Gradients at the vectors `first`…; `high`, `low` as in `box_gradients`."""
    zero = centre.dtype.type(0)
    for j in range(first, last):
        for k in range(vectors.shape[1]):
            at_vectors[j, k] = zero
        for i in range(centre.shape[0]):
            up = high[i, j]
            down = low[i, j]
            if up == zero and down == zero:
                continue
            for k in range(vectors.shape[1]):
                step = vectors[j, k] - centre[i, k]
                gap = abs(step)
                both = up * (gap + radius[i, k]) + down * max(gap - radius[i, k], zero)
                at_vectors[j, k] += both if step > zero else (-both if step < zero else zero)


@_compile
def relu_box(
    centre: Floats, radius: Floats, to_centre: Floats, to_radius: Floats, first: int, last: int
) -> None:
    """max(x, 0) of a box, in one pass over flat arrays."""
    zero = centre.dtype.type(0)
    half = centre.dtype.type(0.5)
    for i in range(first, last):
        upper = max(centre[i] + radius[i], zero)
        lower = max(centre[i] - radius[i], zero)
        to_centre[i] = half * (upper + lower)
        to_radius[i] = half * (upper - lower)


@_compile
def charge(centre: Floats, radius: Floats, out: Floats, share: float, first: int, last: int) -> None:
    """r + share·(|m| + r), in one pass over flat arrays."""
    part = centre.dtype.type(share)
    for i in range(first, last):
        out[i] = radius[i] + part * (abs(centre[i]) + radius[i])


@_compile
def relu_box_gradients(
    centre: Floats, radius: Floats, at_centre: Floats, at_radius: Floats, first: int, last: int
) -> None:
    """Gradients of `relu_box`, in place: those at its results become those at its arguments."""
    zero = centre.dtype.type(0)
    half = centre.dtype.type(0.5)
    for i in range(first, last):
        upper = half * (at_centre[i] + at_radius[i]) if centre[i] + radius[i] > zero else zero
        lower = half * (at_centre[i] - at_radius[i]) if centre[i] - radius[i] > zero else zero
        at_centre[i] = upper + lower
        at_radius[i] = upper - lower


@_compile
def moves_less(radius: Floats, one: Floats, other: Floats, room: float) -> bool:
    """Whether radius · |one − other| < room; the sum stops as soon as it is too large."""
    moved = radius.dtype.type(0)
    k = 0
    while k < len(radius) and moved < room:
        stop = min(k + 32, len(radius))
        part = radius.dtype.type(0)
        for j in range(k, stop):
            part += radius[j] * abs(one[j] - other[j])
        moved += part
        k = stop
    return bool(moved < room)


@_compile
def sure_side(radius: Floats, one: Floats, other: Floats, lead: float, slack: float) -> int:
    """1 if `one` is surely farther than `other`, -1 if surely closer, 0 if the box leaves it open.

    `lead` is the difference of squared distances at the box's centre; over the box it moves by at
    most 2 r·|one − other|, and `slack` is kept for rounding.
    """
    room = (abs(lead) - slack) / 2
    if not room > 0 or not moves_less(radius, one, other, room):
        return 0
    return 1 if lead > 0 else -1


@_compile
def count_sure(
    radius: Floats,
    vectors: Floats,
    level: Floats,
    slack: Floats,
    wide_radius: Floats,
    wide_vectors: Floats,
    wide_level: Floats,
    wide_slack: Floats,
    upper: Floats,
    lower: Floats,
    hits: Floats,
    farther: Floats,
    closer: Floats,
    first: int,
    last: int,
) -> None:
    """For each hit of the queries `first`…: how many candidates are surely farther, how many surely closer.

    The distance bounds settle what they can; the rest takes the exact minimum of the difference of
    squared distances over the box, level(c) − level(hit) ∓ 2 r·|c − hit|, whose last term is summed only
    until it is too large; and what that leaves open, the same over the box before the last layer (the
    `wide` arrays, which may have no columns).
    """
    for i in range(first, last):
        for h in range(hits.shape[1]):
            own = hits[i, h]
            far = 0
            near = 0
            for c in range(vectors.shape[0]):
                if c == own:
                    continue
                if upper[i, own] < lower[i, c]:
                    far += 1
                    continue
                if upper[i, c] < lower[i, own]:
                    near += 1
                    continue
                side = sure_side(radius[i], vectors[c], vectors[own], level[i, c] - level[i, own], slack[i])
                if side == 0 and wide_vectors.shape[1] > 0:
                    lead = wide_level[i, c] - wide_level[i, own]
                    side = sure_side(wide_radius[i], wide_vectors[c], wide_vectors[own], lead, wide_slack[i])
                if side > 0:
                    far += 1
                elif side < 0:
                    near += 1
            farther[i, h] = far
            closer[i, h] = near


@_compile
def count_unbeaten(
    radius: Floats,
    vectors: Floats,
    level: Floats,
    slack: Floats,
    wide_radius: Floats,
    wide_vectors: Floats,
    wide_level: Floats,
    wide_slack: Floats,
    upper: Floats,
    lower: Floats,
    rivals: Floats,
    champions: Floats,
    unbeaten: Floats,
    first: int,
    last: int,
) -> None:
    """For the queries `first`…: how many rivals are not surely farther than some champion.

    `rivals` is a mask over candidates; `champions` lists candidates, -1 where there is none. The tests
    are those of `count_sure`.
    """
    for i in range(first, last):
        count = 0
        for c in range(vectors.shape[0]):
            if not rivals[i, c]:
                continue
            beaten = False
            for p in range(champions.shape[1]):
                own = champions[i, p]
                if own < 0:
                    break
                if upper[i, own] < lower[i, c]:
                    beaten = True
                    break
                side = sure_side(radius[i], vectors[c], vectors[own], level[i, c] - level[i, own], slack[i])
                if side == 0 and wide_vectors.shape[1] > 0:
                    lead = wide_level[i, c] - wide_level[i, own]
                    side = sure_side(wide_radius[i], wide_vectors[c], wide_vectors[own], lead, wide_slack[i])
                if side > 0:
                    beaten = True
                    break
            if not beaten:
                count += 1
        unbeaten[i] = count


@_compile
def count_sure_of_one(
    centre: Floats,
    radius: Floats,
    reach: float,
    slack: float,
    unit_norm: bool,
    vectors: Floats,
    slots: Floats,
    hits: Floats,
    level: Floats,
    square: Floats,
    spread: Floats,
    farther: Floats,
    closer: Floats,
    first: int,
    last: int,
) -> None:
    """Adds to `farther` and `closer` how many of the candidates `slots[first]`… surely are so, for each hit.

    One query's box, candidates read where they lie in float32, sums in float64. As in `count_sure` the
    test is |level(c) − level(hit)| > 2 r·|c − hit| + slack; `level`, `square` (squared norm) and `spread`
    are those of the hits. Most pairs need no sum of their own: with h₁ the first hit and spread(c) =
    r·|c − h₁|, the triangle inequality puts r·|c − hit| between |spread(c) − spread(hit)| and spread(c) +
    spread(hit).
    """
    for i in range(first, last):
        own = vectors[slots[i]]
        mine = 0.0
        width = 0.0
        norm = 0.0
        if unit_norm:
            for k in range(len(centre)):
                x = float(own[k])
                mine -= 2 * centre[k] * x
                norm += x * x
                width += radius[k] * abs(x - hits[0, k])
        else:
            for k in range(len(centre)):
                x = float(own[k])
                gap = x - centre[k]
                mine += gap * gap
                width += radius[k] * abs(x - hits[0, k])
        for h in range(hits.shape[0]):
            lead = mine - level[h]
            kept = slack
            if unit_norm:
                # Candidates are compared as if of one norm; what they differ by is paid for here.
                kept += reach * abs(norm - square[h])
            room = (abs(lead) - kept) / 2
            if not room > abs(width - spread[h]):
                continue
            if width + spread[h] >= room:
                moved = 0.0
                for k in range(len(centre)):
                    moved += radius[k] * abs(float(own[k]) - hits[h, k])
                if not moved < room:
                    continue
            if lead > 0:
                farther[h] += 1
            else:
                closer[h] += 1
