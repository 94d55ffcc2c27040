from __future__ import annotations

import math

import numpy as np

from holdfast.metrics import bootstrap, cluster, nmi


def test_separate_classes_are_found():
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 3
    vectors = (np.eye(3, 8)[labels] * 10 + rng.normal(size=(60, 8)) * 0.1).astype(np.float32)
    assert nmi(labels, cluster(vectors, 3)) == 1.0


def test_more_clusters_than_vectors():
    assert len(cluster(np.eye(3, dtype=np.float32), 10)) == 3


def test_nmi_by_hand():
    """Two classes, one split evenly: I = H(class) = ln 2 · …, worked out by the definition."""
    labels, assigned = np.array([0, 0, 1, 1]), np.array([0, 0, 1, 2])
    h_class, h_cluster = math.log(2), 0.5 * math.log(2) + 0.5 * math.log(4)
    assert math.isclose(nmi(labels, assigned), h_class / ((h_class + h_cluster) / 2))


def test_bootstrap_interval_covers_the_mean_and_shrinks():
    rng = np.random.default_rng(1)
    few, many = rng.integers(0, 2, 50), rng.integers(0, 2, 5000)
    low, high = bootstrap(few)
    assert low < few.mean() < high
    narrow = bootstrap(many)
    assert narrow[1] - narrow[0] < 0.2 * (high - low)
    assert bootstrap(few) == (low, high)
