"""The inner loop of smoothed certificates, compiled on first use."""

from __future__ import annotations

from holdfast.bounds.kernels import Floats, compiled_loop


@compiled_loop
def share_out(seen: Floats, low: Floats, step: Floats, bound: float, shared: Floats) -> None:
    """Share each value of a column of `seen` out between the two knots beside it, in proportion to how near they are.

    The knots of column j are −F, then low[j], low[j] + step[j], …, none below −F; what is above the last one falls
    to it.
    """
    last = shared.shape[1] - 1
    for i in range(seen.shape[0]):
        for j in range(seen.shape[1]):
            value = seen[i, j]
            place = (value - low[j]) / step[j]
            if place >= last - 1:
                shared[j, last] += 1.0
                continue
            knot = 0
            if place >= 0:
                knot = int(place) + 1
            under = -bound
            if knot > 0:
                under = max(-bound, low[j] + (knot - 1) * step[j])
            over = max(-bound, low[j] + knot * step[j])
            part = 0.0
            if over > under:
                part = min(1.0, max(0.0, (value - under) / (over - under)))
            shared[j, knot] += 1.0 - part
            shared[j, knot + 1] += part
