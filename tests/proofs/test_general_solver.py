"""The exact answer against a general solver of quadratic programs, with a box for the features and without."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from holdfast.bounds.neighbours import Neighbours
from holdfast.bounds.projection import Limits, dual_value, project
from holdfast.proofs.mahalanobis import exact_radius

clarabel = pytest.importorskip("clarabel")


def solve(rows, needed, limits):
    """min ½‖δ‖² with rows δ ≥ needed inside the limits; infinite if there is none."""
    size = rows.shape[1]
    parts, ends = [-rows], [-needed]
    if limits is not None:
        parts += [np.eye(size), -np.eye(size)]
        ends += [limits.high, -limits.low]
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-12
    found = clarabel.DefaultSolver(
        sparse.identity(size, format="csc"),
        np.zeros(size),
        sparse.csc_matrix(np.vstack(parts)),
        np.concatenate(ends),
        [clarabel.NonnegativeConeT(sum(map(len, parts)))],
        settings,
    ).solve()
    return np.linalg.norm(found.x) if "Solved" in str(found.status) else np.inf


@pytest.mark.parametrize("box", [None, (0.0, 1.0), (0.2, 0.7)])
@pytest.mark.parametrize("dim", [2, 7, 20])
def test_the_exact_answer_is_that_of_a_general_solver(dim, box):
    met = 0
    for seed in range(6):
        random = np.random.default_rng(seed)
        known = Neighbours(
            random.random((60, dim)), random.integers(0, 3, 60), random.normal(size=(dim, dim))
        )
        point = random.random(dim)
        label = int(known.labels[known.squared(point).argmin()])
        limits = None if box is None else Limits.around(point, *box)
        squared, ours = known.squared(point), np.flatnonzero(known.labels == label)
        best = min(
            solve(2 * (known.u[j] - known.u[ours]), squared[j] - squared[ours], limits)
            for j in np.flatnonzero(known.labels != label)
        )
        found = exact_radius(point, label, known, limits)
        if best == np.inf:
            assert found.lower == found.upper == np.inf
            continue
        met += 1
        assert found.upper == pytest.approx(best, rel=1e-6)
        assert found.lower == pytest.approx(best, rel=1e-6)
        assert found.lower <= found.upper
    assert met >= 3


def test_any_multipliers_prove_no_more_than_what_is_true():
    random = np.random.default_rng(3)
    for number in range(60):
        rows, needed = random.normal(size=(6, 4)), random.normal(size=6)
        limits = Limits(-random.random(4), random.random(4)) if number % 2 else None
        least = solve(rows, needed, limits)
        for _ in range(5):
            assert dual_value(rows, needed, random.random(6) ** 4, limits) <= least * (1 + 1e-9)
        weights, move = project(rows, needed, limits)
        if move is not None and least < np.inf:
            assert np.linalg.norm(move) == pytest.approx(least, rel=1e-6, abs=1e-8)
            assert dual_value(rows, needed, weights, limits) == pytest.approx(least, rel=1e-6, abs=1e-6)
