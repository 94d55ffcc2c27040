"""Exact nearest candidates: FAISS proposes in float32, float64 decides, nothing is missed.

Guarantee: the answer is what sorting all float64 distances would give. FAISS's float32 values only
narrow the field, by margins that hold for every rounding:

* direct form, Σ(q−c)²: the error is at most γ·d², relative to the squared distance itself;
* norm form, ‖q‖²+‖c‖²−2q·c (what FAISS uses for a batch): at most γ·(‖q‖+‖c‖)²,

with γ = 2(d+4)·2⁻²⁴, twice the textbook bound. A query whose batch answer is not proven by the
second margin is scanned again in the direct form, where the first one proves it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Slots = NDArray[np.int64]

MARGIN = 22
"""How many candidates beyond k a batch fetches, so that close float32 values rarely need a rescan."""

_QUERY_CHUNK = 512
_FETCHED = 1 << 21
_RECHECK_ELEMENTS = 1 << 20
_UNDERFLOW = 2.0**-120
_SLACK = 1 + 2.0**-40


@dataclass(frozen=True)
class Found:
    """Candidates by float64 distance, nearest first; equal distances are in no particular order."""

    distances: Doubles
    slots: Slots

    @property
    def ties(self) -> bool:
        return bool((self.distances[1:] == self.distances[:-1]).any())


def nearest(vectors: Floats, max_norm: float, queries: Floats, k: int) -> list[Found]:
    """Per query, every candidate that is at least as near as the k-th nearest: k of them, or more by ties.

    `max_norm` is at least the norm of each of the `vectors`; 1 ≤ k ≤ len(vectors).
    """
    if len(queries) == 1:
        return [_nearest_direct(vectors, queries[0], k)]
    found: list[Found] = []
    step = max(1, min(_QUERY_CHUNK, _FETCHED // (k + MARGIN)))
    for start in range(0, len(queries), step):
        found += _nearest_batch(vectors, max_norm, queries[start : start + step], k)
    return found


def within(vectors: Floats, query: Floats, radius: float) -> Found:
    """Every candidate whose distance to `query` is at most `radius`, nearest first."""
    with np.errstate(over="ignore"):
        slots = _at_most(_direct(vectors, query), np.float64(radius) ** 2, query.size)
    return _cut(distances(vectors, slots, query), slots, radius)


def distances(vectors: Floats, slots: Slots, query: Floats) -> Doubles:
    """Float64 distances of `query` to `vectors[slots]`; each depends on its two vectors alone."""
    return pair_distances(vectors, slots[None, :], query[None, :]).reshape(-1)


def pair_distances(vectors: Floats, slots: Slots, queries: Floats) -> Doubles:
    """Float64 distances of queries[i] to vectors[slots[i, j]].

    The sum over coordinates runs row by row in one order, so that equal vectors have exactly equal
    distances, whatever else is in the batch.
    """
    n, m = slots.shape
    dim = vectors.shape[1]
    out = np.empty(n * m, dtype=np.float64)
    flat = slots.reshape(-1)
    rows = max(1, _RECHECK_ELEMENTS // dim)
    for start in range(0, n * m, rows):
        part = slice(start, min(start + rows, n * m))
        difference = vectors[flat[part]].astype(np.float64)
        difference -= queries[np.arange(part.start, part.stop) // m]
        np.square(difference, out=difference)
        np.sqrt(np.add.reduce(difference, axis=1), out=out[part])
    return out.reshape(n, m)


def _nearest_direct(vectors: Floats, query: Floats, k: int) -> Found:
    near = _direct(vectors, query)
    slots = _at_most(near, np.float64(np.partition(near, k - 1)[k - 1]), query.size)
    exact = distances(vectors, slots, query)
    return _cut(exact, slots, float(np.partition(exact, k - 1)[k - 1]))


def _nearest_batch(vectors: Floats, max_norm: float, queries: Floats, k: int) -> list[Found]:
    import faiss

    fetch = min(len(vectors), k + MARGIN)
    with np.errstate(over="ignore", invalid="ignore"):
        near, slots = faiss.knn(queries, vectors, fetch)
        exact = pair_distances(vectors, slots, queries)
        kth = np.partition(exact, k - 1, axis=1)[:, k - 1]
        norms = np.sqrt(np.square(queries, dtype=np.float64).sum(axis=1))
        error = _gamma(queries.shape[1]) * (norms + max_norm) ** 2 + _UNDERFLOW * queries.shape[1]
        kept_its_bound = (np.abs(near - exact**2) <= error[:, None]).all(axis=1)
        beyond = (
            near[:, -1].astype(np.float64) - error if fetch < len(vectors) else np.full(len(queries), np.inf)
        )
        proven = kept_its_bound & (slots >= 0).all(axis=1) & (beyond > kth**2 * _SLACK)
    return [
        _cut(exact[row], slots[row], kth[row]) if proven[row] else _nearest_direct(vectors, queries[row], k)
        for row in range(len(queries))
    ]


def _direct(vectors: Floats, query: Floats) -> Floats:
    """Squared float32 distances to all vectors, in the direct form."""
    import faiss

    out = np.empty(len(vectors), dtype=np.float32)
    query = np.ascontiguousarray(query)
    faiss.fvec_L2sqr_ny(  # type: ignore[attr-defined]
        faiss.swig_ptr(out), faiss.swig_ptr(query), faiss.swig_ptr(vectors), query.size, len(vectors)
    )
    return out


def _at_most(near: Floats, square: np.float64, dim: int) -> Slots:
    """Every slot whose squared distance can be `square` or less, if `near` is the direct form's value.

    Three times γ covers an error in `near` and one in `square`; what overflowed float32 can be any.
    """
    limit = square * (1 + 3 * _gamma(dim)) + _UNDERFLOW * dim
    if limit >= np.finfo(np.float32).max:
        return np.arange(len(near))
    return np.flatnonzero(near <= limit)


def _gamma(dim: int) -> float:
    return 2 * (dim + 4) * 2.0**-24


def _cut(exact: Doubles, slots: Slots, radius: float) -> Found:
    keep = exact <= radius
    exact, slots = exact[keep], slots[keep]
    order = np.argsort(exact, kind="stable")
    return Found(exact[order], slots[order])
