"""Attacks on nearest neighbours: known answers, votes counted by hand, and never below a certificate."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.bounds.neighbours import Neighbours, outvoted
from holdfast.bounds.projection import Limits
from holdfast.certify.mahalanobis import exact_radius, knn_radius
from holdfast.neighbours.moves import smallest_move, smallest_moves


def problem(seed, dim=4, n=40, classes=3, rank=None):
    random = np.random.default_rng(seed)
    vectors, labels = random.random(size=(n, dim)), random.integers(0, classes, n)
    known = Neighbours(vectors, labels, random.normal(size=(rank or dim, dim)))
    return known, random.random(dim), random


def loses(squared, labels, label, k):
    """Whether some order of ties leaves the class without the most votes: every order is tried."""
    for order in permutations(range(len(squared))):
        if all(squared[a] <= squared[b] for a, b in pairwise(order)):
            votes = Counter(labels[list(order[:k])].tolist())
            if any(votes[c] >= votes[label] for c in votes if c != label):
                return True
    return False


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), min_size=3, max_size=6), st.sampled_from([1, 3])
)
def test_votes_are_counted_with_ties_for_the_attacker(vectors, k):
    squared = np.array([float(d) for d, _ in vectors])
    labels = np.array([c for _, c in vectors])
    assert (outvoted(squared, labels, 0, k) is not None) == loses(squared, labels, 0, k)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10**6),
    st.sampled_from([1, 3, 5, 11]),
    st.integers(1, 6),
    st.sampled_from([2, 3, 5]),
    st.booleans(),
    st.sampled_from([None, (0.0, 1.0), (0.3, 0.8)]),
)
def test_no_move_is_shorter_than_what_is_certified(seed, k, dim, classes, flat, box):
    known, point, _ = problem(seed, dim, 45, classes, rank=max(1, dim - 1) if flat else None)
    label = seed % classes
    limits = None if box is None else Limits.around(point, *box)
    found = smallest_move(point, label, known, k, limits=limits)
    assert knn_radius(point, label, known, k) <= found.length
    if found.length < np.inf:
        assert found.length == pytest.approx(np.linalg.norm(found.move))
        assert outvoted(known.squared(point + found.move), known.labels, label, k) is not None
    if limits is not None:
        assert (found.move >= limits.low).all()
        assert (found.move <= limits.high).all()
    if k == 1:
        exact = exact_radius(point, label, known, limits)
        assert exact.lower <= found.length
        assert smallest_move(point, label, known, starts=[exact.move], limits=limits).length <= exact.upper
        assert found.length <= 1.5 * exact.upper or exact.upper == np.inf, "near the least there is"


@pytest.mark.parametrize("k", [3, 5])
def test_it_comes_near_the_least_move_that_many_tries_find(k):
    """In the plane the least move can be found by looking everywhere."""
    ratios = []
    for seed in range(10):
        known, point, _ = problem(seed, 2, 40, 2)
        label = int(np.argmax(np.bincount(known.labels[np.argsort(known.squared(point))[:k]])))
        found = smallest_move(point, label, known, k).length
        angle, length = np.linspace(0, 2 * np.pi, 90)[:, None, None], np.arange(0, 1.5, 0.005)[None, :, None]
        places = point + length * np.concatenate([np.cos(angle), np.sin(angle)], 2)
        away = np.linalg.norm((places[:, :, None] - known.vectors) @ known.transform.T, axis=3)
        at = (k - 1) // 2
        mine, theirs = (np.sort(away[..., known.labels == c], 2)[..., at] for c in (label, 1 - label))
        least = np.where(theirs <= mine, length[..., 0], np.inf).min()
        ratios.append(found / max(least, 1e-9))
    assert np.max(ratios) < 1.15
    assert np.mean(ratios) < 1.02


def test_known_answers():
    line = Neighbours(np.array([[0.0], [1.0]]), np.array([0, 1]), np.array([[2.0]]))
    assert smallest_move(np.array([0.2]), 0, line).length == pytest.approx(0.3)
    assert smallest_move(np.array([0.7]), 0, line).length == 0, "wrong as it is"
    assert smallest_move(np.array([0.5]), 0, line).length == 0, "a tie is the attacker's"
    # Two of three: the second of class 1 must come before the second of class 0.
    three = Neighbours(np.array([[0.0], [0.1], [1.0], [1.2]]), np.array([0, 0, 1, 1]), np.eye(1))
    found = smallest_move(np.array([0.0]), 0, three, 3)
    assert found.length == pytest.approx(0.6), "between 0.0 and 1.2"
    assert found.length == pytest.approx(knn_radius(np.array([0.0]), 0, three, 3))
    alone = Neighbours(np.zeros((3, 1)), np.zeros(3, dtype=int), np.eye(1))
    assert smallest_move(np.zeros(1), 0, alone, 3).length == np.inf
    both = smallest_moves(np.array([[0.2], [0.7]]), np.array([0, 0]), line)
    assert [entry.length for entry in both] == pytest.approx([0.3, 0.0])


def test_a_box_keeps_the_attacker_inside():
    """Across a diagonal: the short way down leaves the box, so the long way along it is the answer."""
    corner = Neighbours(np.array([[0.5, 0.2], [0.9, -0.2]]), np.array([0, 1]), np.eye(2))
    point = np.array([0.5, 0.0])
    free = exact_radius(point, 0, corner)
    assert free.move[1] < 0
    limits = Limits.around(point, 0.0, 1.0)
    kept = exact_radius(point, 0, corner, limits)
    assert kept.upper == pytest.approx(0.2)
    assert kept.lower == pytest.approx(kept.upper, rel=1e-6)
    assert free.upper < kept.upper
    assert smallest_move(point, 0, corner, limits=limits).length == pytest.approx(kept.upper)
    # A box that does not reach the other side at all: no move, and that is proved.
    never = exact_radius(point, 0, corner, Limits.around(point, 0.4, 0.6))
    assert never.lower == never.upper == np.inf
    assert smallest_move(point, 0, corner, limits=Limits.around(point, 0.4, 0.6)).length == np.inf
    outside = Limits.around(np.array([1.3, 0.5]), 0.0, 1.0)
    assert outside.low.tolist() == pytest.approx([-1.3, -0.5])
    assert outside.high.tolist() == pytest.approx([0.0, 0.5]), "a point outside may go in, not farther out"


def test_a_projection_without_constraints_is_no_move():
    from holdfast.bounds.projection import project

    weights, move = project(np.empty((0, 5)), np.empty(0))
    assert weights.shape == (0,)
    assert move is not None
    assert move.tolist() == [0.0] * 5
