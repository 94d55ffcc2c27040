"""Certificates of neighbours where few digits are left: vectors close together, far from 0, under skewed metrics."""

from __future__ import annotations

from decimal import Decimal, getcontext

import numpy as np
import pytest

from holdfast.bounds.neighbours import absolute_norm
from holdfast.certify.mahalanobis import Limits, Neighbours, exact_radius, flips, knn_radius
from holdfast.errors import DataError
from holdfast.neighbours.moves import smallest_move

getcontext().prec = 60


def exact(array):
    return [[Decimal(float(v)) for v in row] for row in np.atleast_2d(array)]


def true_radius(point, vectors, labels, g):
    """The 1-NN bound by 60 digits: the smallest over negatives of the largest over positives."""
    (x,), rows, matrix = exact(point), exact(vectors), exact(g)

    def mapped(v):
        return [sum(a * b for a, b in zip(row, v, strict=True)) for row in matrix]

    def squared(v):
        return sum(a * a for a in mapped([p - q for p, q in zip(x, v, strict=True)]))

    def length(p, q):
        z = mapped([a - b for a, b in zip(p, q, strict=True)])
        u = [sum(matrix[i][j] * z[i] for i in range(len(z))) for j in range(len(x))]
        return sum(a * a for a in u).sqrt()

    found = []
    for j in np.flatnonzero(labels != 0):
        each = [
            (squared(rows[j]) - squared(rows[i])) / (2 * length(rows[i], rows[j]))
            for i in np.flatnonzero(labels == 0)
        ]
        found.append(max(each))
    return max(Decimal(0), min(found))


@pytest.mark.parametrize("offset", [0.0, 1.0, 1e3])
@pytest.mark.parametrize("scale", [1.0, 1e-4, 1e-7])
@pytest.mark.parametrize("kind", ["dense", "diagonal"])
def test_no_bound_is_above_the_true_one(offset, scale, kind):
    random = np.random.default_rng(5)
    for _ in range(12):
        g = random.normal(size=(4, 4)) * np.array([1, 1e-2, 1e-3, 1])[:, None]
        if kind == "diagonal":
            g = np.diag(np.diag(g))
        vectors = offset + scale * random.normal(size=(8, 4))
        labels = np.array([0, 0, 0, 0, 1, 1, 1, 1])
        point = vectors[0] + 0.1 * scale * random.normal(size=4)
        found = knn_radius(point, 0, Neighbours(vectors, labels, g))
        truth = true_radius(point, vectors, labels, g)
        assert Decimal(found) <= truth
        if scale == 1.0 and offset <= 1:
            assert found == pytest.approx(float(truth), rel=1e-6)


@pytest.mark.parametrize("size", [392, 784, 2000])
def test_two_vectors_close_together_in_many_features(size):
    """Their distance is what is left of ‖a‖² + ‖b‖² − 2ab, whose sums of many small terms all round one way."""
    small, step = np.sqrt(0.99 * 2.0**-53), 0.01425
    a, b = np.full(size, small), np.full(size, -small)
    a[0], b[0] = 1 + 1.0001 * step, 1 + 0.0001 * step
    known = Neighbours(np.stack([a, b, -a, -b]), np.array([0, 1, 0, 1]), np.eye(size))
    square = sum((Decimal(float(p)) - Decimal(float(q))) ** 2 for p, q in zip(a, b, strict=True))
    truth = square.sqrt() / 2
    assert Decimal(knn_radius(a, 0, known)) <= truth
    assert Decimal(exact_radius(a, 0, known).lower) <= truth
    assert knn_radius(a, 0, known) == pytest.approx(float(truth), rel=1e-7)


def test_what_has_no_finite_distance_is_refused():
    vectors, labels = np.array([[0.0, 0.0], [1.0, 0.0]]), np.array([0, 1])
    known = Neighbours(vectors, labels, np.eye(2))
    for point in ([np.nan, 0.0], [np.inf, 0.0], [1e160, 0.0]):
        for radius in (knn_radius, exact_radius):
            with pytest.raises(DataError, match="no distance"):
                radius(np.array(point), 0, known)
    with pytest.raises(DataError, match="too large"):
        Neighbours(vectors, labels, 1e154 * np.eye(2))


def test_what_a_product_can_be_off_by():
    random = np.random.default_rng(0)
    for shape in [(1, 1), (3, 7), (40, 40)]:
        for g in (random.normal(size=shape), random.normal(size=shape) * np.eye(*shape), np.zeros(shape)):
            assert absolute_norm(g) >= np.linalg.norm(np.abs(g), 2)
    assert absolute_norm(np.eye(784)) == pytest.approx(1.0)


@pytest.mark.parametrize(("offset", "width"), [(10.0, 1e-2), (10.0, 1e-5), (1e3, 1e-2), (1e3, 1e-5)])
def test_thin_wedges_far_away_are_not_certified_beyond_a_move_that_flips(offset, width):
    random = np.random.default_rng(6)
    for _ in range(10):
        g = random.normal(size=(3, 3))
        vectors = offset + 1e-2 * np.array([[1, width, 0], [1, -width, 0], [-1, 0, 0.3], [-1.5, 0.2, 0]])
        known = Neighbours(vectors, np.array([0, 0, 1, 1]), g)
        point = vectors[:2].mean(0) + 1e-4 * random.normal(size=3)
        found = exact_radius(point, 0, known)
        assert found.lower <= found.upper * (1 + 1e-9)
        assert found.lower <= smallest_move(point, 0, known).length * (1 + 1e-9)


def test_under_a_metric_that_stretches_unevenly_few_problems_are_solved_and_the_ends_meet():
    """Rounding takes more off the gaps than a part in 10,000; the move is sought for the gaps as they are."""
    random = np.random.default_rng(8)
    turned = np.linalg.qr(random.normal(size=(60, 60)))[0]
    known = Neighbours(
        random.uniform(size=(300, 60)), np.arange(300) % 2, np.diag(np.logspace(4, -3, 60)) @ turned
    )
    for _ in range(10):
        point = random.uniform(size=60)
        found = exact_radius(point, int(known.labels[known.squared(point).argmin()]), known)
        assert 0 < found.lower <= found.upper < np.inf
        assert found.gap < 1e-4
        assert found.solved < 20


def test_a_move_into_a_cell_thinner_than_a_part_in_ten_thousand_is_found():
    thin = Neighbours(
        np.array(
            [
                [-0.11842594, -1.03729229],
                [-0.11841675, -1.03729623],
                [-0.11843513, -1.03728835],
                [0.03941409, 0.091905],
            ]
        ),
        np.array([1, 0, 0, 0]),
        np.eye(2),
    )
    found = exact_radius(np.array([-0.02, -0.046]), 0, thin)
    assert found.upper == pytest.approx(0.46792533, rel=1e-7)
    corner = Neighbours(
        np.array([[0.1, 0.9], [1.286356134909106, 1.8590684047273174]]), np.array([0, 1]), np.eye(2)
    )
    point = np.array([0.4, 0.6])
    found = exact_radius(point, 0, corner, Limits.around(point, 0, 1))
    assert found.upper == pytest.approx(0.72110968, rel=1e-7)
    assert flips(point, found.move, 0, corner)


def test_a_move_that_is_returned_was_tried():
    known = Neighbours(
        np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 1.0]]), np.array([0, 1, 1]), np.diag([1.0, 1e-6])
    )
    point = np.array([0.0, -5.0])
    found = exact_radius(point, 0, known)
    assert found.upper == np.inf or flips(point, found.move, 0, known)
    assert found.lower <= smallest_move(point, 0, known).length
