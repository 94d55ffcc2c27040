"""Exact nearest candidates: FAISS proposes in float32, float64 decides, nothing is missed.

Guarantee: the answer is what sorting all float64 distances would give. FAISS's float32 values only
narrow the field, by margins that hold for every rounding:

* direct form, Σ(q−c)²: the error is at most γ·d², relative to the squared distance itself;
* norm form, ‖q‖²+‖c‖²−2q·c (what FAISS uses for a batch): at most γ·(‖q‖+‖c‖)²,

with γ = 2(d+4)·2⁻²⁴, twice the textbook bound, and d·2⁻¹²⁰ more for what underflows. A query whose
batch answer is not proven by the second margin is scanned again in the direct form, where the first
one proves it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from holdfast.bounds.box import TINY

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Slots = NDArray[np.int64]

MARGIN = 22
"""How many candidates beyond k a batch fetches, so that close float32 values rarely need a rescan."""

_QUERY_CHUNK = 512
_FETCHED = 1 << 21
_RECHECK_ELEMENTS = 1 << 20
SLACK = 1 + 2.0**-40
"""More than the rounding of a float64 distance."""


@dataclass(frozen=True)
class Found:
    """Candidates by float64 distance, nearest first; equal distances are in no particular order."""

    distances: Doubles
    slots: Slots

    @property
    def ties(self) -> bool:
        return bool((self.distances[1:] == self.distances[:-1]).any())


class Scan:
    """One query against all vectors: float32 distances, computed once, that several questions share."""

    def __init__(self, vectors: Floats, query: Floats) -> None:
        self.query = query
        self.vectors = vectors
        self._near = _direct(vectors, query)

    def nearest(self, k: int) -> Found:
        """Every candidate that is at least as near as the k-th nearest: k of them, or more by ties."""
        slots = self._at_most(np.float64(np.partition(self._near, k - 1)[k - 1]))
        exact = self.distances(slots)
        return cut(exact, slots, float(np.partition(exact, k - 1)[k - 1]))

    def within(self, radius: float) -> Found:
        """Every candidate whose distance is at most `radius`, nearest first."""
        slots = self.possible(radius)
        return cut(self.distances(slots), slots, radius)

    def possible(self, radius: float | Doubles) -> Slots:
        """Every slot whose distance can be `radius` or less, and perhaps a few more, in order.

        `radius` is one number, or one for each slot; what is not a number excludes nothing.
        """
        with np.errstate(over="ignore"):
            return self._at_most(np.square(radius, dtype=np.float64))

    def distances(self, slots: Slots) -> Doubles:
        """Float64 distances to some of the vectors."""
        return pair_distances(self.vectors, slots[None, :], self.query[None, :]).reshape(-1)

    def _at_most(self, square: np.float64 | Doubles) -> Slots:
        """Every slot whose squared distance can be `square` or less.

        Three times γ covers an error in the float32 values and one in `square`, which may be one of
        them; what overflowed float32 can be any.
        """
        dim = self.query.size
        with np.errstate(over="ignore"):
            limit = square * (1 + 3 * _gamma(dim)) + TINY * dim
        return np.flatnonzero(~(self._near > limit) | (limit >= np.finfo(np.float32).max))


def nearest(vectors: Floats, max_norm: float, queries: Floats, k: int) -> list[Found]:
    """Per query, every candidate that is at least as near as the k-th nearest: k of them, or more by ties.

    `max_norm` is at least the norm of each of the `vectors`; 1 ≤ k ≤ len(vectors).
    """
    if len(queries) == 1:
        return [Scan(vectors, queries[0]).nearest(k)]
    found: list[Found] = []
    step = max(1, min(_QUERY_CHUNK, _FETCHED // (k + MARGIN)))
    for start in range(0, len(queries), step):
        found += _nearest_batch(vectors, max_norm, queries[start : start + step], k)
    return found


def within(vectors: Floats, query: Floats, radius: float) -> Found:
    """Every candidate whose distance to `query` is at most `radius`, nearest first."""
    return Scan(vectors, query).within(radius)


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


def _nearest_batch(vectors: Floats, max_norm: float, queries: Floats, k: int) -> list[Found]:
    import faiss

    fetch = min(len(vectors), k + MARGIN)
    with np.errstate(over="ignore", invalid="ignore"):
        near, slots = faiss.knn(queries, vectors, fetch)
        exact = pair_distances(vectors, slots, queries)
        kth = np.partition(exact, k - 1, axis=1)[:, k - 1]
        error = norm_form_error(queries, max_norm)
        kept_its_bound = (np.abs(near - exact**2) <= error[:, None]).all(axis=1)
        beyond = (
            near[:, -1].astype(np.float64) - error if fetch < len(vectors) else np.full(len(queries), np.inf)
        )
        proven = kept_its_bound & (slots >= 0).all(axis=1) & (beyond > kth**2 * SLACK)
    return [
        cut(exact[row], slots[row], kth[row]) if proven[row] else Scan(vectors, queries[row]).nearest(k)
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


def _gamma(dim: int) -> float:
    return 2 * (dim + 4) * 2.0**-24


def norm_form_error(queries: Floats, max_norm: float) -> Doubles:
    """Per query, how far a squared float32 distance to a vector of norm `max_norm` or less can be off, in any form."""
    norms = np.sqrt(np.square(queries, dtype=np.float64).sum(axis=1))
    return np.asarray(_gamma(queries.shape[1]) * (norms + max_norm) ** 2 + TINY * queries.shape[1])


def largest_norm(rows: Floats) -> float:
    """The largest Euclidean norm among `rows`, not below the true one by more than float64's rounding."""
    return float(np.sqrt(np.square(rows, dtype=np.float64).sum(axis=1).max(initial=0.0)))


def cut(exact: Doubles, slots: Slots, radius: float) -> Found:
    """Those of the candidates that are within `radius`, nearest first."""
    keep = exact <= radius
    exact, slots = exact[keep], slots[keep]
    order = np.argsort(exact, kind="stable")
    return Found(exact[order], slots[order])
