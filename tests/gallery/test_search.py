"""What a user sees of a search: hits, ties, and refusals that say what to do."""

from __future__ import annotations

import numpy as np
import pytest
from gallery_reference import DIM, names, random, ranking, told

from holdfast.errors import GalleryError
from holdfast.gallery import Gallery, Hit, Hits


def test_hits_are_those_of_a_full_sort(gallery: Gallery) -> None:
    ids, vectors, queries = names(50), random(50), random(4, 1)
    gallery.add(ids, vectors, labels=[f"class {n % 3}" for n in range(50)], paths=[f"{id}.jpg" for id in ids])
    answers = gallery.nearest(queries, 7, names=["a", "b", "c", "d"])
    assert [hits.query for hits in answers] == ["a", "b", "c", "d"]
    for query, hits in zip(queries, answers, strict=True):
        assert told(hits) == ranking(query, ids, vectors)[:7]
        for hit in hits.hits:
            assert (hit.path, hit.label) == (f"{hit.id}.jpg", f"class {int(hit.id[-4:]) % 3}")
    assert told(gallery.nearest(queries[2], 7)[0]) == told(answers[2])


def test_ties_are_by_id_and_marked_also_across_the_last_rank(gallery: Gallery) -> None:
    vectors = np.zeros((6, DIM), dtype=np.float32)
    vectors[[1, 4], 0] = 1, 2
    gallery.add(["f", "far", "b", "d", "farther", "a"], vectors)
    query = np.zeros(DIM)
    assert told(gallery.nearest(query, 2)[0]) == [("a", 0.0, True), ("b", 0.0, True)]
    assert told(gallery.nearest([query, query], 5)[1])[3:] == [("f", 0.0, True), ("far", 1.0, False)]
    assert told(gallery.range_search(query, 1.0)) == told(gallery.nearest(query, 5)[0])


def test_one_of_two_tied_is_marked_although_the_other_is_not_shown(gallery: Gallery) -> None:
    vectors = np.zeros((3, DIM), dtype=np.float32)
    vectors[:, 0] = 1, -1, 0.5
    gallery.add(["x", "y", "z"], vectors)
    assert told(gallery.nearest(np.zeros(DIM), 2)[0]) == [("z", 0.5, False), ("x", 1.0, True)]


def test_ids_order_ties_by_code_point(gallery: Gallery) -> None:
    ids = ["é", "z", "Z", "10", "9", "日本", "🙂"]
    gallery.add(ids, np.ones((len(ids), DIM)))
    assert [hit.id for hit in gallery.nearest(np.ones(DIM), 99)[0].hits] == sorted(ids)
    assert list(gallery.ids()) == sorted(ids)


def test_range_search_takes_the_border_and_may_be_empty(gallery: Gallery) -> None:
    vectors = np.zeros((2, DIM))
    vectors[:, 1] = 3, 4
    gallery.add(["near", "far"], vectors)
    origin = np.zeros(DIM)
    assert [hit.id for hit in gallery.range_search(origin, 3).hits] == ["near"]
    assert gallery.range_search(origin, np.nextafter(3, 0)).hits == ()
    assert len(gallery.range_search(origin, float("inf"))) == 2


def test_k_larger_than_the_gallery_gives_all(gallery: Gallery) -> None:
    gallery.add(names(3), random(3))
    assert len(gallery.nearest(random(1), 10)[0]) == 3
    distances, slots = gallery.nearest_arrays(random(2, 1), 10)
    assert distances.shape == slots.shape == (2, 3)


def test_arrays_name_the_same_items_as_hits(gallery: Gallery) -> None:
    gallery.add(names(30), random(30), labels=["x"] * 30)
    queries = random(5, 1)
    with gallery.snapshot():
        distances, slots = gallery.nearest_arrays(queries, 4)
        found = gallery.items(slots.ravel())
    hits = [hit for answer in gallery.nearest(queries, 4) for hit in answer.hits]
    assert [(item.id, item.label) for item in found] == [(hit.id, hit.label) for hit in hits]
    assert distances.ravel().tolist() == [hit.distance for hit in hits]


def test_an_error_inside_a_snapshot_is_the_callers_own(gallery: Gallery) -> None:
    with pytest.raises(FileNotFoundError), gallery.snapshot():
        raise FileNotFoundError("photo.jpg")
    gallery.add(names(1), random(1))
    with gallery.snapshot():
        assert gallery.verify() == []
        assert len(gallery.nearest(random(1), 1)[0]) == 1


def test_no_queries_no_answers(gallery: Gallery) -> None:
    gallery.add(names(3), random(3))
    assert gallery.nearest(np.empty((0, DIM)), 2) == []


def bad(value: float) -> list[float]:
    return [1.0] * (DIM - 1) + [value]


@pytest.mark.parametrize(
    ("queries", "k", "message"),
    [
        (np.ones(DIM + 1), 1, "5 numbers each; found an array of shape"),
        (np.ones((1, 1, DIM)), 1, "5 numbers each; found an array of shape"),
        (bad(float("nan")), 1, "must be finite; number 1 of 1"),
        ([bad(1.0), bad(float("inf"))], 1, "must be finite; number 2 of 2"),
        (bad(1e300), 1, "must be finite"),
        (["a"] * DIM, 1, "must be real numbers"),
        (np.ones(DIM), 0, "k is at least 1, not 0"),
        (np.ones(DIM), -3, "k is at least 1, not -3"),
        (np.ones(DIM), 2.5, "k is a whole number, not 2.5"),
    ],
)
def test_bad_searches_are_refused(gallery: Gallery, queries: object, k: int, message: str) -> None:
    gallery.add(names(3), random(3))
    with pytest.raises(GalleryError, match=message) as refused:
        gallery.nearest(queries, k)  # type: ignore[arg-type]
    assert "\n" not in str(refused.value)


def test_other_refusals(gallery: Gallery) -> None:
    with pytest.raises(GalleryError, match="is empty; add images"):
        gallery.nearest(np.ones(DIM), 1)
    with pytest.raises(GalleryError, match="is empty; add images"):
        gallery.range_search(np.ones(DIM), 1)
    gallery.add(names(3), random(3))
    with pytest.raises(GalleryError, match="one query, not 2"):
        gallery.range_search(np.ones((2, DIM)), 1)
    for radius in (-1.0, float("nan")):
        with pytest.raises(GalleryError, match="a radius is 0 or more"):
            gallery.range_search(np.ones(DIM), radius)
    with pytest.raises(GalleryError, match="2 queries came with 1 names"):
        gallery.nearest(np.ones((2, DIM)), 1, names=["only"])
    with pytest.raises(GalleryError, match="no item 'nobody'"):
        gallery.get("nobody")
    with pytest.raises(GalleryError, match="no item in slot 3"):
        gallery.items(np.array([0, 3]))
    gallery.close()
    with pytest.raises(GalleryError, match="is closed; open it again"):
        gallery.nearest(np.ones(DIM), 1)


@pytest.mark.parametrize(
    ("hits", "message"),
    [
        ([Hit(2, "a", 1.0)], "rank 2 where 1 belongs"),
        ([Hit(1, "a", 2.0), Hit(2, "b", 1.0)], "out of order"),
        ([Hit(1, "b", 1.0, tied=True), Hit(2, "a", 1.0, tied=True)], "out of order"),
        ([Hit(1, "a", 1.0, tied=True), Hit(2, "b", 1.0)], "tie, unmarked"),
        ([Hit(1, "a", float("nan"))], "has distance nan"),
    ],
)
def test_hits_check_themselves(hits: list[Hit], message: str) -> None:
    with pytest.raises(GalleryError, match=message):
        Hits("q", tuple(hits))
