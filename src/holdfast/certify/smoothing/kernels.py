"""The inner loop of smoothed certificates, compiled on first use."""

from __future__ import annotations

from holdfast.bounds.kernels import Floats, compiled_loop


@compiled_loop
def count_places(seen: Floats, low: Floats, per_step: Floats, counts: Floats) -> None:
    """Count, for each column of `seen`, in which step above `low` each value lies: 0 below it, the last one above all.

    Rounding moves a value by a few ulp of its place, so it may be counted in a step that it just fails to reach.
    """
    last = counts.shape[1] - 1
    for i in range(seen.shape[0]):
        for j in range(seen.shape[1]):
            place = (seen[i, j] - low[j]) * per_step[j]
            step = 0
            if place >= last:
                step = last
            elif place >= 0:
                step = int(place) + 1
            counts[j, step] += 1
