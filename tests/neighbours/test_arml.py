"""ARML: its loss by the formula, radii that grow, scikit-learn's checks, and the baselines beside it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.utils.estimator_checks import parametrize_with_checks

from holdfast.certify.mahalanobis import Neighbours, knn_radii, knn_radius
from holdfast.errors import ConfigError, DataError
from holdfast.neighbours import ARML, METHODS, learn
from holdfast.neighbours.arml import critical, margins, nearest_of_each


def noisy_features(seed=0, n=240, classes=3):
    """Two features say the class, six are noise of the same range."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, classes, n)
    centres = np.array([[0.2, 0.2], [0.8, 0.3], [0.4, 0.9]])[labels]
    return np.hstack([centres + 0.08 * random.normal(size=(n, 2)), random.random((n, 6))]), labels


@parametrize_with_checks([ARML(iterations=2, neighbours=2)])
def test_scikit_learns_checks(estimator, check):
    check(estimator)


def test_the_margin_is_the_formula():
    random = np.random.default_rng(0)
    g, x, own, other = random.normal(size=(3, 5)), *random.normal(size=(3, 4, 5))
    matrix = g.T @ g
    for row, found in enumerate(margins(*(torch.from_numpy(v) for v in (g, x, own, other))).tolist()):
        a, b, c = x[row] - other[row], x[row] - own[row], own[row] - other[row]
        assert found == pytest.approx((a @ matrix @ a - b @ matrix @ b) / (2 * np.linalg.norm(matrix @ c)))
    same = torch.ones(1, 5, dtype=torch.float64)
    assert margins(torch.from_numpy(g), torch.zeros_like(same), same, same).tolist() == [0.0]


def test_neighbours_are_the_nearest_of_each_kind(monkeypatch):
    from holdfast.neighbours import arml

    random = np.random.default_rng(1)
    z, kinds = torch.from_numpy(random.normal(size=(30, 3))), torch.from_numpy(random.integers(0, 3, 30))
    monkeypatch.setattr(arml, "BLOCK", 7)
    positives, negatives = nearest_of_each(z, kinds, torch.arange(30), 3)
    away = torch.cdist(z, z)
    for i in range(30):
        for table, mask in ((positives, kinds == kinds[i]), (negatives, kinds != kinds[i])):
            allowed = [j for j in away[i].argsort().tolist() if mask[j] and j != i]
            assert table[i].tolist() == allowed[:3]
    few, _ = nearest_of_each(z[:3], torch.tensor([0, 0, 1]), torch.tensor([0, 1]), 4)
    assert few.tolist() == [[1] * 4, [0] * 4], "the only partner stands in for more"


def test_the_critical_pair_is_the_one_that_the_certificate_names():
    vectors, labels = noisy_features(n=60)
    g = np.random.default_rng(2).normal(size=(8, 8))
    points, weights, kinds = (torch.from_numpy(v) for v in (vectors, g, labels))
    everyone = torch.arange(60)
    tables = nearest_of_each(points @ weights.T, kinds, everyone, 59)
    (own, other), least = critical(points, weights, everyone, *tables)
    assert margins(weights, points, points[own[:, 0]], points[other[:, 0]]) == pytest.approx(least.numpy())
    for i in range(60):
        rest = np.arange(60) != i
        known = Neighbours(vectors[rest], labels[rest], g)
        assert max(0.0, float(least[i])) == pytest.approx(
            knn_radius(vectors[i], int(labels[i]), known), rel=1e-6
        )


def test_a_stopped_fit_goes_on(tmp_path, monkeypatch):
    from holdfast.neighbours import arml

    vectors, labels = noisy_features()
    how = {"iterations": 12, "refresh": 3, "patience": 9}
    whole = ARML(**how).fit(vectors, labels)
    searched = []

    def stopped(*words):
        searched.append(1)
        if len(searched) == 3:
            raise KeyboardInterrupt
        return nearest_of_each(*words)

    file = tmp_path / "part"
    with monkeypatch.context() as patch:
        patch.setattr(arml, "nearest_of_each", stopped)
        with pytest.raises(KeyboardInterrupt):
            ARML(**how, checkpoint=file).fit(vectors, labels)
    assert file.exists()
    with pytest.raises(ValueError, match="belongs to other vectors or settings"):
        ARML(**{**how, "lr": 0.5}, checkpoint=file).fit(vectors, labels)
    again = ARML(**how, checkpoint=file).fit(vectors, labels)
    assert not file.exists()
    assert np.array_equal(whole.components_, again.components_)
    assert whole.margins_ == again.margins_
    file.write_bytes(b"something else")
    with pytest.raises(ValueError, match="not a checkpoint"):
        ARML(**how, checkpoint=file).fit(vectors, labels)


def test_certified_radii_grow_on_vectors_that_were_not_seen():
    vectors, labels = noisy_features()
    fresh, truth = noisy_features(1)
    radii = {}
    for method, options in (
        ("euclidean", {}),
        ("arml", {"iterations": 60}),
        ("arml", {"iterations": 60, "pairs": "critical"}),
    ):
        metric = learn(vectors, labels, method, **options)
        known = Neighbours(metric.scaled(vectors), labels, metric.transform)
        radii[options.get("pairs", method)] = knn_radii(metric.scaled(fresh[:80]), truth[:80], known)
    for found in ("arml", "critical"):
        assert radii[found].mean() > 1.15 * radii["euclidean"].mean()
        assert (radii[found] == 0).mean() <= (radii["euclidean"] == 0).mean()
    assert radii["critical"].mean() > radii["arml"].mean()


def test_the_same_seed_gives_the_same_metric_and_a_rank_is_kept():
    vectors, labels = noisy_features()
    one, two = (ARML(iterations=3, random_state=5).fit(vectors, labels) for _ in range(2))
    assert np.array_equal(one.components_, two.components_)
    assert one.get_mahalanobis_matrix() == pytest.approx(one.components_.T @ one.components_)
    low = ARML(rank=2, iterations=30).fit(vectors, labels)
    assert low.transform(vectors).shape == (240, 2)
    assert low.margins_[-1] > low.margins_[0]


def test_it_stops_when_nothing_is_gained():
    vectors, labels = noisy_features()
    found = ARML(iterations=400, refresh=5, patience=3, tolerance=0.5).fit(vectors, labels)
    assert found.n_iter_ < 40


def test_lfda_takes_features_that_depend_on_each_other():
    """One of four columns is 1 for every letter, so they always add up to 1: no scatter in that direction."""
    random = np.random.default_rng(0)
    letters = random.integers(0, 4, (300, 6))
    vectors = (letters[:, :, None] == np.arange(4)).reshape(300, -1).astype(float)
    found = learn(vectors, (letters[:, 0] + letters[:, 1] > 3).astype(int), "lfda").transform
    assert np.isfinite(found).all()
    assert np.linalg.matrix_rank(found) == 18
    assert np.abs(found @ np.repeat(np.eye(6), 4, axis=1).T).max() < 1e-9 * np.abs(found).max()


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_method_learns_a_metric(method):
    vectors, labels = noisy_features(n=90)
    options = {"arml": {"iterations": 3}, "nca": {"max_iter": 5}, "lmnn": {"max_iter": 5}}.get(method, {})
    metric = learn(vectors, labels, method, **options)
    assert metric.features == 8
    assert metric.apply(vectors).shape[0] == 90


def test_what_cannot_be_learned_from_is_said():
    vectors, labels = noisy_features(n=30)
    for values, kinds, says in (
        (vectors * np.nan, labels, "NaN or infinity"),
        (vectors, labels[:4], "as many labels, found 4"),
        (vectors, np.zeros(30), "at least 2 classes"),
        (np.ones((30, 2)), labels, "every feature is constant"),
    ):
        with pytest.raises(DataError, match=says):
            learn(values, kinds)
    with pytest.raises(ConfigError, match="unknown method 'arm'"):
        learn(vectors, labels, "arm")
    with pytest.raises(ConfigError, match="no class has 2 samples"):
        learn(vectors, np.arange(30))
    with pytest.raises(ConfigError, match="unknown setting of arml 'colour'"):
        learn(vectors, labels, "arml", colour=3)
