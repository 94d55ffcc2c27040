"""Certified neighbours under a Mahalanobis metric: naive references, known answers, and moves against them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from holdfast.errors import ConfigError, DataError
from holdfast.proofs.mahalanobis import Neighbours, exact_radius, flips, knn_radii, knn_radius
from holdfast.proofs.mahalanobis.exact import nearest_label


def problem(seed, dim=4, n=40, classes=3, rank=None):
    random = np.random.default_rng(seed)
    vectors, labels = random.normal(size=(n, dim)), random.integers(0, classes, n)
    known = Neighbours(vectors, labels, random.normal(size=(rank or dim, dim)))
    point = random.normal(size=dim)
    return known, point, int(nearest_label(point, known)[0]), random


def naive(known, point, label, k):
    """The formula as it is written, pair by pair."""
    matrix, s = known.transform.T @ known.transform, (k + 1) // 2

    def distance(x):
        return float((x - point) @ matrix @ (x - point))

    outer = []
    for other in known.vectors[known.labels != label]:
        inner = []
        for own in known.vectors[known.labels == label]:
            gap = max(0.0, distance(other) - distance(own))
            inner.append(gap / (2 * np.linalg.norm(matrix @ (own - other))))
        outer.append(sorted(inner)[-s])
    return sorted(outer)[s - 1]


@pytest.mark.parametrize("k", [1, 3, 7])
@pytest.mark.parametrize("seed", range(6))
def test_the_bound_is_the_formula(seed, k, monkeypatch):
    from holdfast.proofs.mahalanobis import bound

    known, point, label, _ = problem(seed, n=60)
    want = naive(known, point, label, k)
    assert knn_radius(point, label, known, k) == pytest.approx(want, rel=1e-7)
    monkeypatch.setattr(bound, "BLOCK", 5)
    monkeypatch.setattr(bound, "QUICK", 2)
    assert knn_radius(point, label, known, k) == pytest.approx(want, rel=1e-7), (
        "whatever is left out on the way"
    )
    few = knn_radius(point, label, known, k, positives=(k + 1) // 2 + 1)
    assert few <= want * (1 + 1e-7)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([1, 3, 5]), st.integers(1, 6), st.booleans())
def test_no_move_within_the_radius_outvotes_the_class(seed, k, dim, flat):
    """Two classes, so that the majority of an odd K is what the bound is about; metrics of lower rank too."""
    known, point, _, random = problem(seed, dim, 30, 2, rank=max(1, dim - 1) if flat else None)
    votes = nearest_label(point, known, k)
    label = int(votes.sum() * 2 > k)
    radius = knn_radius(point, label, known, k)
    for _ in range(40):
        way = random.normal(size=dim)
        move = min(radius, 1e6) * 0.999 * way / np.linalg.norm(way)
        votes = nearest_label(point + move, known, k)
        assert (votes == label).sum() * 2 > k or radius == 0


@pytest.mark.parametrize("seed", range(12))
def test_the_exact_answer_agrees_with_a_general_solver(seed):
    known, point, label, _ = problem(seed, dim=3, n=24)
    found = exact_radius(point, label, known)
    squared, best = known.squared(point), np.inf
    for other in np.flatnonzero(known.labels != label):
        ours = np.flatnonzero(known.labels == label)
        apart, needed = 2 * (known.u[other] - known.u[ours]), squared[other] - squared[ours]
        made = minimize(
            lambda d: d @ d,
            known.vectors[other] - point,
            jac=lambda d: 2 * d,
            constraints={
                "type": "ineq",
                "fun": lambda d, a=apart, b=needed: a @ d - b,
                "jac": lambda d, a=apart: a,
            },
            method="SLSQP",
            options={"maxiter": 500, "ftol": 1e-14},
        )
        if made.success:
            best = min(best, float(np.sqrt(made.fun)))
    assert found.upper == pytest.approx(best, rel=1e-5)
    assert found.gap < 1e-6
    assert knn_radius(point, label, known) <= found.upper * (1 + 1e-9)
    assert flips(point, found.move, label, known)
    assert not flips(point, 0.999 * found.move, label, known)


def test_known_answers():
    line = Neighbours(np.array([[0.0], [1.0], [3.0]]), np.array([0, 1, 0]), np.array([[2.0]]))
    assert knn_radius(np.array([0.2]), 0, line) == pytest.approx(0.3)
    assert exact_radius(np.array([0.2]), 0, line).upper == pytest.approx(0.3)
    assert exact_radius(np.array([0.7]), 0, line).upper == 0, "misclassified as it is"
    assert knn_radius(np.array([0.7]), 0, line) == 0
    # A tilted metric: only the second feature counts.
    plane = Neighbours(np.array([[0.0, 0.0], [9.0, 1.0]]), np.array([0, 1]), np.array([[0.0, 1.0]]))
    assert exact_radius(np.array([9.0, 0.1]), 0, plane).upper == pytest.approx(0.4)


def test_the_scale_of_the_metric_does_not_matter():
    known, point, label, _ = problem(3)
    for scale in (1000, 1e-7):
        other = Neighbours(known.vectors, known.labels, scale * known.transform)
        assert knn_radius(point, label, other, 3) == pytest.approx(knn_radius(point, label, known, 3))
        assert exact_radius(point, label, other).upper == pytest.approx(
            exact_radius(point, label, known).upper
        )


def test_what_the_metric_does_not_tell_apart_ties():
    """The two differ only where G sees nothing: they are as near as each other wherever the point is."""
    flat = Neighbours(np.array([[0.7, 0.1], [0.6, 0.2]]), np.array([0, 1]), np.array([[1.0, 1.0]]))
    point = np.array([0.2, 0.2])
    assert knn_radius(point, 0, flat) == 0
    assert exact_radius(point, 0, flat).lower == 0
    # A negative on top of one of three positives: the others keep it off.
    vectors = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, 1.0], [1.0, 0.0]])
    twins = Neighbours(vectors, np.array([0, 0, 0, 1]), np.eye(2))
    found = exact_radius(np.array([0.1, 0.0]), 0, twins)
    assert found.upper == pytest.approx(0.4)
    assert found.gap < 1e-6


def test_fewer_vectors_than_neighbours():
    few = Neighbours(np.array([[0.0], [1.0], [2.0], [3.0]]), np.array([0, 1, 1, 1]), np.eye(1))
    assert knn_radius(np.array([0.1]), 0, few, 11) == 0
    known, point, label, _ = problem(2, n=60)
    assert knn_radius(point, label, known, 11, positives=2) <= knn_radius(point, label, known, 11)


def test_ends_of_the_question():
    known, point, label, _ = problem(5, n=12)
    alone = Neighbours(known.vectors, np.zeros(12, dtype=int), known.transform)
    assert knn_radius(point, 0, alone) == np.inf == exact_radius(point, 0, alone).upper
    assert knn_radius(point, 7, known) == 0 == exact_radius(point, 7, known).upper
    assert knn_radii(np.stack([point, point]), np.array([label, 7]), known)[1] == 0
    twins = Neighbours(np.array([[0.0], [0.0], [2.0]]), np.array([0, 1, 1]), np.eye(1))
    assert knn_radius(np.array([0.5]), 0, twins) == 0
    with pytest.raises(ConfigError, match="K is odd"):
        knn_radius(point, label, known, 2)
    with pytest.raises(DataError, match="does not fit vectors of 4"):
        Neighbours(known.vectors, known.labels, np.eye(3))
    with pytest.raises(DataError, match="NaN"):
        Neighbours(known.vectors * np.nan, known.labels, known.transform)
    with pytest.raises(DataError, match="the metric is zero"):
        Neighbours(known.vectors, known.labels, 0 * known.transform)
    with pytest.raises(DataError, match="as many labels"):
        Neighbours(known.vectors, known.labels[:3], known.transform)
