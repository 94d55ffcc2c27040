"""Exact search where float32 alone would be wrong: near ties, ties and pruning, with answers known beforehand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gallery_reference import EMBEDDER

from holdfast.bounds import Box
from holdfast.gallery import Boxes, Gallery, exact
from holdfast.gallery.certified import QueryBounds, certify_query
from holdfast.threat import Threat

EPS = 0.1


def rows(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)[:, None]


def largest(vectors: np.ndarray) -> float:
    return float(np.linalg.norm(vectors.astype(np.float64), axis=1).max())


def misled(monkeypatch: pytest.MonkeyPatch, share: float) -> None:
    """Float32 distances that are off as far as they may be: the nearest one up, the others down."""
    real = exact._direct

    def off(vectors: np.ndarray, query: np.ndarray) -> np.ndarray:
        near = real(vectors, query).astype(np.float64)
        signs = np.where(near == near.min(), 1.0, -1.0)
        return (near * (1 + signs * share)).astype(np.float32)

    monkeypatch.setattr(exact, "_direct", off)


def test_a_nearest_that_float32_puts_behind_others_is_found(monkeypatch):
    """Distances that differ by less than float32 may err: the margin keeps all, and float64 chooses."""
    dim = 64
    gamma = (dim + 4) * 2.0**-24
    chance = np.random.default_rng(0)
    away = chance.standard_normal((20, dim))
    away /= np.linalg.norm(away, axis=1, keepdims=True)
    vectors = (away * (1 + gamma * np.linspace(0.01, 0.5, 20))[:, None]).astype(np.float32)
    query = np.zeros(dim, dtype=np.float32)
    expected = np.argsort(np.linalg.norm(vectors.astype(np.float64), axis=1))
    misled(monkeypatch, gamma)
    for k in (1, 3, 10):
        found = exact.nearest(vectors, largest(vectors), query[None], k)[0]
        assert found.slots.tolist() == expected[:k].tolist()
        radius = float(found.distances[-1])
        assert exact.within(vectors, query, radius).slots.tolist() == expected[:k].tolist()


def test_a_batch_is_believed_only_beyond_its_margin(monkeypatch):
    """FAISS fetches 23 of 60 by values within their error, the nearest not among them: they are scanned again."""
    import faiss

    vectors = np.concatenate([np.full((60, 1), 1000.0), np.linspace(0, 1e-3, 60)[:, None]], axis=1)
    vectors = np.ascontiguousarray(vectors[::-1], dtype=np.float32)
    queries = np.array([[1000.0, 0.0], [1000.0, 1e-3]], dtype=np.float32)

    def careless(queries, vectors, k):
        slots = np.stack([np.arange(k), len(vectors) - 1 - np.arange(k)])
        near = exact.pair_distances(vectors, slots, queries) ** 2
        # All of them said to be at the same place, which is within the error of the norm form here.
        return np.broadcast_to(near.max(1, keepdims=True), near.shape).astype(np.float32), slots

    monkeypatch.setattr(faiss, "knn", careless)
    found = exact.nearest(vectors, largest(vectors), queries, 1)
    assert [one.slots.tolist() for one in found] == [[59], [0]]


def test_ties_come_back_whole_and_are_settled_by_id(tmp_path):
    """1, −1 and 2 around 0: two nearest by distance, and the first of them by id, marked as tied."""
    found = exact.nearest(rows(1, 2, -1), 2.0, rows(0), 1)[0]
    assert sorted(found.slots.tolist()) == [0, 2]
    assert found.ties
    assert sorted(exact.within(rows(1, 2, -1), np.zeros(1, dtype=np.float32), 1.0).slots.tolist()) == [0, 2]
    with Gallery.create(tmp_path / "g", dim=1, embedder=EMBEDDER) as gallery:
        gallery.add(["b", "c", "a"], rows(1, 2, -1))
        (hits,) = gallery.nearest(rows(0), 3)
        assert [(hit.id, hit.tied) for hit in hits.hits] == [("a", True), ("b", True), ("c", False)]
        assert [hit.id for hit in gallery.range_search(rows(0)[0], 1.0).hits] == ["a", "b"]


@pytest.mark.parametrize("threat", ["candidates", "both"])
def test_a_far_candidate_with_a_wide_box_is_not_left_out(tmp_path, threat):
    """At 10 and by 9.5 either way it can come before the one at 1: its own reach counts in what is left out."""
    at, moves = rows(1, 2, 10, 40), rows(0.1, 0.1, 9.5, 0.1).astype(np.float64)
    asked = QueryBounds(np.zeros(1, dtype=np.float32), Box(torch.zeros(1, 1), torch.zeros(1, 1)), False)
    with Gallery.create(tmp_path / "g", dim=1, embedder=EMBEDDER) as gallery:
        gallery.add_boxes(EPS, lambda *_: None)
        gallery.add(list("abcd"), at, boxes={EPS: Boxes.around(at.astype(np.float64), moves)})
        found = certify_query(gallery, asked, 2, Threat.parse(f"{threat}:linf:{EPS}"))
    assert [(entry.id, entry.certificate.best, entry.certificate.worst) for entry in found.hits] == [
        ("a", 1, 2),
        ("b", 2, 3),
    ]
    assert found.proof.examined == 3, "the one at 40 is left out"


def test_a_query_that_moves_far_leaves_no_rival_out(tmp_path):
    """At 0 ± 4 the query reaches 4, from where 7½ is nearer than 0 and 1: what it moves by counts twice."""
    asked = QueryBounds(np.zeros(1, dtype=np.float32), Box(torch.zeros(1, 1), torch.full((1, 1), 4.0)), False)
    with Gallery.create(tmp_path / "g", dim=1, embedder=EMBEDDER) as gallery:
        gallery.add(list("abcd"), rows(0, 7.5, 8.5, 30))
        found = certify_query(gallery, asked, 1, Threat.parse("query:linf:0.1"))
        assert [
            (e.id, e.certificate.best, e.certificate.worst, str(e.certificate.verdict)) for e in found.hits
        ] == [("a", 1, 2, "UNKNOWN")]
        assert found.proof.examined == 2
        # A box that is off the embedding: the query's way to its far end counts.
        aside = QueryBounds(
            np.zeros(1, dtype=np.float32), Box(torch.full((1, 1), 2.0), torch.full((1, 1), 2.0)), False
        )
        found = certify_query(gallery, aside, 1, Threat.parse("query:linf:0.1"))
        assert [(e.certificate.best, e.certificate.worst) for e in found.hits] == [(1, 2)]


def test_boxes_are_kept_no_smaller_than_they_were(tmp_path):
    """Float32 centres are off by their rounding: the radius and the reach take it up."""
    centre, radius = np.array([[1 + 2.0**-26, -(1 / 3)]]), np.array([[0.1, 2.0**-30]])
    kept = Boxes.around(centre, radius)
    low, high = (kept.centre.astype(np.float64) + way * kept.radius.astype(np.float64) for way in (-1, 1))
    assert (low <= centre - radius).all()
    assert (high >= centre + radius).all()
    vectors = np.array([[1.0, -0.25]], dtype=np.float32)
    far = np.hypot(*(np.abs(vectors - kept.centre.astype(np.float64)) + kept.radius)[0])
    assert far <= kept.reach(vectors).item() <= far * (1 + 1e-6)


def test_the_next_larger_stored_box_serves_and_no_smaller_one(tmp_path):
    from holdfast.errors import GalleryError

    at = rows(1, 2)
    with Gallery.create(tmp_path / "g", dim=1, embedder=EMBEDDER) as gallery:
        for eps in (0.05, 0.2):
            gallery.add_boxes(eps, lambda *_: None)
        wide = {eps: Boxes.around(at.astype(np.float64), np.full((2, 1), 4 * eps)) for eps in (0.05, 0.2)}
        gallery.add(["a", "b"], at, boxes=wide)
        asked = QueryBounds(np.zeros(1, dtype=np.float32), None, False)
        found = certify_query(gallery, asked, 1, Threat.parse("candidates:linf:0.1"))
        assert found.proof.boxes == 0.2
        assert found.hits[0].certificate.worst == 2
        assert (
            certify_query(gallery, asked, 1, Threat.parse("candidates:linf:0.05")).hits[0].certificate.worst
            == 1
        )
        with pytest.raises(GalleryError, match="only boxes for"):
            certify_query(gallery, asked, 1, Threat.parse("candidates:linf:0.3"))
