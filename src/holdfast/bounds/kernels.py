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


def compiled_loop(function: Kernel) -> Kernel:
    """Compile with sums that may be reordered, and NaN and infinity that keep their meaning."""
    fast = {"reassoc", "contract", "nsz", "arcp"}
    compiled: Kernel = numba.njit(cache=True, nogil=True, fastmath=fast)(function)
    return compiled


@compiled_loop
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


@compiled_loop
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


@compiled_loop
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


@compiled_loop
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


# Numba lets an index be negative, which keeps it from vectorising a loop from `first` to `last`; a loop
# over the whole of a slice it vectorises, six times as fast. A NaN is no less than zero: it stays one.


@compiled_loop
def relu_box(
    centre: Floats, radius: Floats, to_centre: Floats, to_radius: Floats, first: int, last: int
) -> None:
    """max(x, 0) of a box, in one pass over flat arrays."""
    centre, radius = centre[first:last], radius[first:last]
    to_centre, to_radius = to_centre[first:last], to_radius[first:last]
    zero = centre.dtype.type(0)
    half = centre.dtype.type(0.5)
    for i in range(centre.shape[0]):
        upper = centre[i] + radius[i]
        lower = centre[i] - radius[i]
        upper = zero if upper <= zero else upper
        lower = zero if lower <= zero else lower
        to_centre[i] = half * (upper + lower)
        to_radius[i] = half * (upper - lower)


@compiled_loop
def relu_box_in_place(
    centre: Floats, radius: Floats, share: float, least: float, first: int, last: int
) -> None:
    """`relu_box` whose results take the place of its arguments, the radius with `charge` on it."""
    centre, radius = centre[first:last], radius[first:last]
    zero = centre.dtype.type(0)
    half = centre.dtype.type(0.5)
    part = centre.dtype.type(share)
    more = centre.dtype.type(least)
    for i in range(centre.shape[0]):
        upper = centre[i] + radius[i]
        lower = centre[i] - radius[i]
        upper = zero if upper <= zero else upper
        lower = zero if lower <= zero else lower
        # The upper end is |m| + r: nothing is below zero now.
        centre[i] = half * (upper + lower)
        radius[i] = half * (upper - lower) + part * upper + more


@compiled_loop
def relu_box_gradients(
    centre: Floats, radius: Floats, at_centre: Floats, at_radius: Floats, first: int, last: int
) -> None:
    """Gradients of `relu_box`, in place: those at its results become those at its arguments."""
    centre, radius = centre[first:last], radius[first:last]
    at_centre, at_radius = at_centre[first:last], at_radius[first:last]
    zero = centre.dtype.type(0)
    half = centre.dtype.type(0.5)
    for i in range(centre.shape[0]):
        upper = half * (at_centre[i] + at_radius[i]) if centre[i] + radius[i] > zero else zero
        lower = half * (at_centre[i] - at_radius[i]) if centre[i] - radius[i] > zero else zero
        at_centre[i] = upper + lower
        at_radius[i] = upper - lower


@compiled_loop
def charge(
    centre: Floats, radius: Floats, out: Floats, share: float, least: float, first: int, last: int
) -> None:
    """r + share·(|m| + r) + least, in one pass over flat arrays."""
    centre, radius, out = centre[first:last], radius[first:last], out[first:last]
    part = centre.dtype.type(share)
    more = centre.dtype.type(least)
    for i in range(centre.shape[0]):
        out[i] = radius[i] + part * (abs(centre[i]) + radius[i]) + more


@compiled_loop
def charge_in_place(
    centre: Floats, radius: Floats, share: float, least: float, first: int, last: int
) -> None:
    """`charge` whose result takes the place of the radius."""
    centre, radius = centre[first:last], radius[first:last]
    part = centre.dtype.type(share)
    more = centre.dtype.type(least)
    for i in range(centre.shape[0]):
        radius[i] = radius[i] + part * (abs(centre[i]) + radius[i]) + more


@compiled_loop
def clipped_box(
    images: Floats, reach: Floats, more: float, to_centre: Floats, to_radius: Floats, first: int, last: int
) -> None:
    """The boxes of the images `first`…, within `reach` of each and inside [0, 1]; `more` goes to every radius."""
    zero = images.dtype.type(0)
    one = images.dtype.type(1)
    half = images.dtype.type(0.5)
    extra = images.dtype.type(more)
    for i in range(first, last):
        image, eps, centre, radius = images[i], reach[i], to_centre[i], to_radius[i]
        for k in range(image.shape[0]):
            lower = max(image[k] - eps, zero)
            upper = min(image[k] + eps, one)
            centre[k] = half * (lower + upper)
            radius[k] = half * (upper - lower) + extra
