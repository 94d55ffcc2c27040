"""The inner loops of rank certificates, compiled on first use: one comparison for each pair, no temporary.

A side is 1 where a candidate is surely farther than a hit, -1 where surely closer, 0 where that is open.
Each loop takes the cheapest test that decides, counts the sides, writes them where `sides` has rows, and
works on a range of queries, so that threads share the work.
"""

from __future__ import annotations

from holdfast.bounds.kernels import Floats, compiled_loop


@compiled_loop
def most_moved(radius: Floats, one: Floats, other: Floats) -> float:
    """radius · |one − other|: by how much z·(one − other) moves, at most, where z moves in its box."""
    moved = radius.dtype.type(0)
    for k in range(len(radius)):
        moved += radius[k] * abs(one[k] - other[k])
    return float(moved)


@compiled_loop
def moves_less(radius: Floats, one: Floats, other: Floats, room: float) -> bool:
    """Whether `most_moved` < room; the sum stops as soon as it is too large."""
    moved = 0.0
    k = 0
    while k < len(radius) and moved < room:
        # Slices, because numba vectorises no loop that begins at a variable.
        moved += most_moved(radius[k : k + 64], one[k : k + 64], other[k : k + 64])
        k += 64
    return bool(moved < room)


@compiled_loop
def sure_side(radius: Floats, one: Floats, other: Floats, lead: float, slack: float) -> int:
    """1 if `one` is surely farther than `other`, -1 if surely closer, 0 if the box leaves it open.

    `lead` is the difference of squared distances at the box's centre; over the box it moves by at
    most 2 r·|one − other|, and `slack` is kept for rounding.
    """
    room = (abs(lead) - slack) / 2
    if not room > 0 or not moves_less(radius, one, other, room):
        return 0
    return 1 if lead > 0 else -1


@compiled_loop
def query_sides(
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
    sides: Floats,
    farther: Floats,
    closer: Floats,
    first: int,
    last: int,
) -> None:
    """The side of every candidate for each hit of the queries `first`…, if the query moves in its box.

    The distance bounds settle what they can; the rest takes the exact minimum of the difference of
    squared distances over the box, level(c) − level(hit) ∓ 2 r·|c − hit|, whose last term is summed only
    until it is too large; and what that leaves open, the same over the box before the last layer (the
    `wide` arrays, which may have no columns). A hit of -1 is none.
    """
    keep = len(sides) > 0
    for i in range(first, last):
        for h in range(hits.shape[1]):
            own = hits[i, h]
            far = 0
            near = 0
            for c in range(vectors.shape[0] if own >= 0 else 0):
                if c == own:
                    continue
                side = 0
                if upper[i, own] < lower[i, c]:
                    side = 1
                elif upper[i, c] < lower[i, own]:
                    side = -1
                else:
                    lead = level[i, c] - level[i, own]
                    side = sure_side(radius[i], vectors[c], vectors[own], lead, slack[i])
                    if side == 0 and wide_vectors.shape[1] > 0:
                        lead = wide_level[i, c] - wide_level[i, own]
                        side = sure_side(
                            wide_radius[i], wide_vectors[c], wide_vectors[own], lead, wide_slack[i]
                        )
                if side > 0:
                    far += 1
                elif side < 0:
                    near += 1
                if keep:
                    sides[i, h, c] = side
            farther[i, h] = far
            closer[i, h] = near


@compiled_loop
def least_lead(
    low: Floats, high: Floats, near: Floats, near_radius: Floats, far: Floats, far_radius: Floats
) -> float:
    """The least of ‖z − c‖² − ‖z − ĉ‖² over z from `low` to `high`, c in the box `near`, ĉ in the box `far`.

    Coordinate by coordinate c comes as near to z as it can and ĉ goes as far: what is left,
    relu(|z − m| − r)² − (|z − m̂| + r̂)², is concave in z (the first term's curvature is 2 or 0, the
    second's −2, and its kink bends down), so the least value is at an end.
    """
    zero = low.dtype.type(0)
    total = zero
    for k in range(len(low)):
        close = max(abs(low[k] - near[k]) - near_radius[k], zero)
        apart = abs(low[k] - far[k]) + far_radius[k]
        at_low = close * close - apart * apart
        close = max(abs(high[k] - near[k]) - near_radius[k], zero)
        apart = abs(high[k] - far[k]) + far_radius[k]
        total += min(at_low, close * close - apart * apart)
    return float(total)


@compiled_loop
def both_sides(
    low: Floats,
    high: Floats,
    centre: Floats,
    radius: Floats,
    middle_upper: Floats,
    middle_lower: Floats,
    share: float,
    upper: Floats,
    lower: Floats,
    hits: Floats,
    sides: Floats,
    farther: Floats,
    closer: Floats,
    first: int,
    last: int,
) -> None:
    """The side of every candidate for each hit of the queries `first`…, if query and candidates all move.

    The distance bounds settle what they can; the rest takes the exact `least_lead`, if the distances
    from the middle of the query's box (`middle_…`) do not already refute it. A hit of -1 is none.
    """
    keep = len(sides) > 0
    for i in range(first, last):
        for h in range(hits.shape[1]):
            own = hits[i, h]
            far = 0
            near = 0
            for c in range(centre.shape[0] if own >= 0 else 0):
                if c == own:
                    continue
                side = 0
                if upper[i, own] < lower[i, c]:
                    side = 1
                elif upper[i, c] < lower[i, own]:
                    side = -1
                else:
                    room = share * (upper[i, c] * upper[i, c] + upper[i, own] * upper[i, own])
                    if middle_upper[i, own] < middle_lower[i, c]:
                        lead = least_lead(low[i], high[i], centre[c], radius[c], centre[own], radius[own])
                        side = 1 if lead > room else 0
                    elif middle_upper[i, c] < middle_lower[i, own]:
                        lead = least_lead(low[i], high[i], centre[own], radius[own], centre[c], radius[c])
                        side = -1 if lead > room else 0
                if side > 0:
                    far += 1
                elif side < 0:
                    near += 1
                if keep:
                    sides[i, h, c] = side
            farther[i, h] = far
            closer[i, h] = near


@compiled_loop
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

    One query's box, candidates read where they lie in float32, sums in float64. The test is that of `sure_side`,
    |level(c) − level(hit)| > 2 r·|c − hit| + slack; `level`, `square` (squared norm) and `spread` are those of the
    hits. Most pairs need no sum of their own: with h₁ the first hit and spread(c) =
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
            if width + spread[h] >= room and not most_moved(radius, own, hits[h]) < room:
                continue
            if lead > 0:
                farther[h] += 1
            else:
                closer[h] += 1
