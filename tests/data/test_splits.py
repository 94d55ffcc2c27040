"""Splits and draws: no overlap, the same every time, classes apart where they must be."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from holdfast.data.splits import closed_split, draw, hold_out, hold_out_classes, open_split
from holdfast.errors import DataError

labels_of = hnp.arrays(np.int64, st.integers(1, 80), elements=st.integers(0, 7))


@given(labels=labels_of, share=st.floats(0.01, 0.99), seed=st.integers(0, 5))
def test_holding_out_is_stratified_disjoint_and_complete(labels: np.ndarray, share: float, seed: int) -> None:
    kept, held = hold_out(labels, share, seed)
    assert sorted([*kept, *held]) == list(range(len(labels)))
    assert (np.diff(kept) > 0).all()
    assert (np.diff(held) > 0).all()
    for label in np.unique(labels):
        total, out = (labels == label).sum(), (labels[held] == label).sum()
        assert out < total
        assert out == 0 if total == 1 else out >= 1
        assert abs(out - share * total) <= 1.0
    again = hold_out(labels, share, seed)
    assert np.array_equal(again[0], kept)
    assert np.array_equal(again[1], held)


def test_another_seed_holds_out_others() -> None:
    labels = np.repeat(np.arange(4), 50)
    assert not np.array_equal(hold_out(labels, 0.2, 0)[1], hold_out(labels, 0.2, 1)[1])


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, 2.0])
def test_a_share_outside_zero_and_one_is_refused(share: float) -> None:
    with pytest.raises(DataError, match="between 0 and 1"):
        hold_out(np.zeros(4, np.int64), share, 0)


def test_the_closed_split_takes_about_a_fifth_of_each_class() -> None:
    ids, labels = [f"{i}.jpg" for i in range(3000)], np.arange(3000) % 3
    shares = np.bincount(labels[closed_split(ids, labels)]) / 1000
    assert (abs(shares - 0.2) < 0.05).all()
    few = closed_split(["a", "b", "c"], np.array([0, 0, 1]))
    assert few[:2].sum() == 1


def test_images_added_later_move_no_training_image_into_the_test_part() -> None:
    ids, labels = [f"{i}.jpg" for i in range(400)], np.arange(400) % 40
    before = closed_split(ids[:300], labels[:300])
    after = closed_split(ids, labels)
    assert not (after[:300] & ~before).any()
    assert after[300:].any()


@given(labels=labels_of)
def test_the_open_split_keeps_classes_apart(labels: np.ndarray) -> None:
    tests = open_split(labels, 8)
    assert not set(labels[tests]) & set(labels[~tests])


@pytest.mark.parametrize(("classes", "training"), [(2, 1), (3, 2), (196, 98), (200, 100), (5, 3)])
def test_the_first_half_of_the_classes_trains_and_an_extra_one_too(classes: int, training: int) -> None:
    tests = open_split(np.arange(classes), classes)
    assert (~tests).sum() == training
    assert not tests[:training].any()


@given(total=st.integers(2, 60), data=st.data())
def test_draws_never_overlap_and_repeat_by_seed(total: int, data: st.DataObject) -> None:
    queries = data.draw(st.integers(1, total - 1))
    candidates = data.draw(st.none() | st.integers(1, total - queries))
    asked, found = draw(range(total), queries, candidates, 3)
    assert (len(asked), len(found)) == (queries, total - queries if candidates is None else candidates)
    both = np.concatenate([asked, found])
    assert len(set(both.tolist())) == len(both)
    assert set(both.tolist()) <= set(range(total))
    again = draw(range(total), queries, candidates, 3)
    assert np.array_equal(again[0], asked)
    assert np.array_equal(again[1], found)


def test_a_known_draw_stays_the_same_across_versions() -> None:
    asked, found = draw(range(1000), 3, 3, 0)
    assert (asked.tolist(), found.tolist()) == ([459, 206, 222], [162, 711, 814])
    assert draw(range(1000), 3, 3, 1)[0].tolist() != asked.tolist()


def test_too_large_a_draw_says_how_many_there_are() -> None:
    with pytest.raises(DataError, match="6 queries and 5 candidates need 11 images, but there are 10"):
        draw(range(10), 6, 5, 0)
    with pytest.raises(DataError, match="need 11 images"):
        draw(range(10), 10, None, 0)
    for queries, candidates in ((0, 5), (5, 0), (-1, 5)):
        with pytest.raises(DataError, match="at least 1 query and 1 candidate"):
            draw(range(10), queries, candidates, 0)


@given(labels=labels_of, share=st.floats(0.01, 0.99), seed=st.integers(0, 5))
def test_whole_classes_are_held_out(labels: np.ndarray, share: float, seed: int) -> None:
    kept, held = hold_out_classes(labels, share, seed)
    assert sorted([*kept, *held]) == list(range(len(labels)))
    assert not {*labels[kept]} & {*labels[held]}
    classes = len({*labels})
    if classes < 4:
        assert len(held) == 0
        return
    out = len({*labels[held]})
    assert out == min(max(2, round(share * classes)), classes - 2)
    assert np.array_equal(hold_out_classes(labels, share, seed)[1], held)
