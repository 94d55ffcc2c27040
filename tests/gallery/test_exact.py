"""The answer is that of sorting all float64 distances, whatever float32 loses on the way."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from gallery_reference import distance, random
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from holdfast.gallery import exact

Floats = NDArray[np.float32]


def expected(vectors: Floats, query: Floats, k: int) -> dict[int, float]:
    values = [distance(query, vector) for vector in vectors]
    kth = sorted(values)[k - 1]
    return {slot: value for slot, value in enumerate(values) if value <= kth}


def norm(vectors: Floats) -> float:
    return float(np.sqrt(np.square(vectors, dtype=np.float64).sum(axis=1)).max())


def assert_exact(found: exact.Found, wanted: dict[int, float]) -> None:
    assert dict(zip(found.slots.tolist(), found.distances.tolist(), strict=True)) == wanted
    assert (np.diff(found.distances) >= 0).all()


@st.composite
def cases(draw: st.DrawFn) -> tuple[Floats, Floats, int]:
    """Vectors with duplicates, near ties and offsets that leave the norm form of a distance few digits."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    dim, count, asked = draw(st.integers(1, 70)), draw(st.integers(1, 120)), draw(st.integers(1, 6))
    spread = draw(st.sampled_from([1.0, 1e-3, 1e-30, 1e15]))
    offset = draw(st.sampled_from([0.0, 1.0, 1e3, 1e6])) * spread
    distinct = draw(st.integers(1, count))
    base = (rng.standard_normal((distinct, dim)) * spread + offset).astype(np.float32)
    vectors = base[rng.integers(0, distinct, count)]
    nudged = rng.random(count) < draw(st.sampled_from([0.0, 0.5]))
    vectors[nudged, 0] = np.nextafter(vectors[nudged, 0], np.float32(np.inf))
    queries = (rng.standard_normal((asked, dim)) * spread + offset).astype(np.float32)
    if draw(st.booleans()):
        queries[0] = vectors[0]
    return vectors, queries, draw(st.integers(1, count))


@pytest.fixture(params=["direct form", "norm form"], scope="module")
def form(request: pytest.FixtureRequest) -> Iterator[None]:
    """FAISS chooses how it computes a batch by its size; here, by us."""
    import faiss

    chosen = faiss.cvar.distance_compute_blas_threshold
    faiss.cvar.distance_compute_blas_threshold = 1 if request.param == "norm form" else 1 << 30
    yield
    faiss.cvar.distance_compute_blas_threshold = chosen


@settings(deadline=None, max_examples=100)
@given(case=cases())
def test_nearest_agrees_with_sorting_everything(form: None, case: tuple[Floats, Floats, int]) -> None:
    vectors, queries, k = case
    together = exact.nearest(vectors, norm(vectors), queries, k)
    for query, found in zip(queries, together, strict=True):
        wanted = expected(vectors, query, k)
        assert_exact(found, wanted)
        assert_exact(exact.nearest(vectors, norm(vectors), query[None, :], k)[0], wanted)


@settings(deadline=None, max_examples=80)
@given(cases(), st.floats(0, 3))
def test_within_agrees_with_comparing_everything(case: tuple[Floats, Floats, int], scale: float) -> None:
    vectors, queries, k = case
    values = sorted(distance(queries[0], vector) for vector in vectors)
    for radius in (values[k - 1], values[k - 1] * scale, 0.0, float("inf")):
        wanted = {slot: distance(queries[0], vector) for slot, vector in enumerate(vectors)}
        assert_exact(
            exact.within(vectors, queries[0], radius),
            {slot: value for slot, value in wanted.items() if value <= radius},
        )


@pytest.mark.parametrize("size", [1e19, 3e38])
def test_distances_beyond_float32_are_still_ordered(size: float) -> None:
    vectors = random(60, dim=8) / 5 * np.float32(size)
    queries = -vectors[:3]
    for query, found in zip(queries, exact.nearest(vectors, norm(vectors), queries, 4), strict=True):
        assert_exact(found, expected(vectors, query, 4))
    radius = distance(queries[0], vectors[1])
    assert 1 in exact.within(vectors, queries[0], radius).slots


def test_more_duplicates_than_are_fetched_all_come_back() -> None:
    vectors = np.concatenate([np.repeat(random(1, 1, 16), 300, axis=0), random(200, 2, 16)])
    queries = vectors[[0, 0, 350]]
    found = exact.nearest(vectors, norm(vectors), queries, 3)
    assert sorted(found[0].slots.tolist()) == list(range(300))
    assert found[1].ties
    assert len(found[2].slots) == 3


def test_a_gallery_far_from_the_origin_defeats_float32_but_not_the_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import faiss

    monkeypatch.setattr(faiss.cvar, "distance_compute_blas_threshold", 1)
    vectors = random(6000, 3, 64) + np.float32(1e3)
    queries = random(40, 4, 64) + np.float32(1e3)
    _, float32 = faiss.knn(queries, vectors, 10)
    found = exact.nearest(vectors, norm(vectors), queries, 10)
    assert any(set(row.slots) != set(fetched) for row, fetched in zip(found, float32, strict=True))
    for query, row in list(zip(queries, found, strict=True))[:5]:
        assert_exact(row, expected(vectors, query, 10))


def test_a_batch_is_proven_without_a_second_scan_on_ordinary_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, queries = random(2000, 5, 64), random(30, 6, 64)

    def refuse(*_: object) -> exact.Scan:
        raise AssertionError("scanned again")

    monkeypatch.setattr(exact, "Scan", refuse)
    assert len(exact.nearest(vectors, norm(vectors), queries, 10)) == 30


def test_a_library_that_breaks_its_error_bound_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    import faiss

    vectors, queries = random(500, 7, 16), random(4, 8, 16)

    def careless(queries: Floats, vectors: Floats, k: int) -> tuple[Floats, NDArray[np.int64]]:
        slots = np.tile(np.arange(k), (len(queries), 1))
        return np.full(slots.shape, 1e6, dtype=np.float32), slots

    monkeypatch.setattr(faiss, "knn", careless)
    for query, found in zip(queries, exact.nearest(vectors, norm(vectors), queries, 5), strict=True):
        assert_exact(found, expected(vectors, query, 5))


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 300), st.integers(1, 40), st.integers(0, 1000))
def test_a_distance_does_not_depend_on_what_else_is_asked(dim: int, count: int, seed: int) -> None:
    vectors, queries = random(count, seed, dim), random(3, seed + 1, dim)
    slots = np.random.default_rng(seed).integers(0, count, (3, 7))
    together = exact.pair_distances(vectors, slots, queries)
    alone = [
        [distance(query, vectors[slot]) for slot in row] for query, row in zip(queries, slots, strict=True)
    ]
    assert together.tolist() == alone


def test_large_requests_are_split(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, queries = random(90, 9, 4), random(20, 10, 4)
    whole = exact.nearest(vectors, norm(vectors), queries, 7)
    monkeypatch.setattr(exact, "_RECHECK_ELEMENTS", 20)
    monkeypatch.setattr(exact, "_FETCHED", 64)
    for one, other in zip(whole, exact.nearest(vectors, norm(vectors), queries, 7), strict=True):
        assert one.slots.tolist() == other.slots.tolist()
        assert one.distances.tolist() == other.distances.tolist()
