"""The short form of `bench/soundness`, whether it would notice, and the exact answers it compares with."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from holdfast.proofs import certifier

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture(autouse=True)
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    yield
    for name in ("_attempts", "_scenes", "_exact", "soundness"):
        sys.modules.pop(name, None)


def test_no_attempt_breaks_a_claim_and_none_goes_beyond_the_exact_answer():
    from soundness import run

    attempts, violations = run(6000, networks=6, trained=False, exact=1)
    assert attempts >= 6000
    assert violations == 0


def test_a_box_that_is_too_small_is_noticed(monkeypatch):
    """With boxes of a tenth of the radius, claims break under every threat."""
    from _attempts import try_scene
    from _scenes import random_scene

    whole = certifier.image_box
    monkeypatch.setattr(certifier, "image_box", lambda images, eps, **rest: whole(images, 0.1 * eps, **rest))
    found: dict[str, int] = {}
    for number in (0, 2, 7):
        for name, tally in try_scene(random_scene(number), 1500, seed=0).items():
            found[name] = found.get(name, 0) + tally.violations
    assert min(found.values()) > 0, found


def test_the_exact_solvers_agree_with_a_dense_sample():
    from _exact import distance_range, layers_of, least_of, program, regions, tiny

    g = np.random.default_rng(0)
    for seed in range(4):
        embedder = tiny(seed, 2, (6, 4), 3)
        layers, exact = layers_of(embedder), copy.deepcopy(embedder.network).double()
        low, high = np.array([0.1, 0.3]), np.array([0.6, 0.9])
        x = torch.from_numpy(low + (high - low) * g.random((40_000, 2))).view(-1, 1, 1, 2)
        with torch.no_grad():
            z = exact(x).numpy()
        point, spec = z.mean(0) + 0.3 * g.standard_normal(3), g.standard_normal(3)
        least, most = distance_range(layers, low, high, point)
        distance = np.linalg.norm(z - point, axis=1)
        assert least - 1e-12 <= distance.min() <= least + 0.02
        assert most - 0.05 <= distance.max() <= most + 1e-12
        value, at = least_of(program(layers, low, high), spec)
        assert value - 1e-6 <= (z @ spec).min() <= value + 0.05
        with torch.no_grad():
            reached = exact(torch.from_numpy(at[:2]).view(1, 1, 1, 2)).numpy()[0] @ spec
        assert reached == pytest.approx(value, abs=1e-5)
        area = sum(polygon_area(corners) for corners, _, _ in regions(layers, low, high))
        assert area == pytest.approx(0.5 * 0.6), "the regions fill the box"
        for corners, matrix, shift in regions(layers, low, high):
            with torch.no_grad():
                there = exact(torch.from_numpy(corners).view(-1, 1, 1, 2)).numpy()
            np.testing.assert_allclose(there, corners @ matrix.T + shift, atol=1e-9)


def polygon_area(corners: np.ndarray) -> float:
    x, y = corners.T
    return abs(float(x @ np.roll(y, -1) - y @ np.roll(x, -1))) / 2
