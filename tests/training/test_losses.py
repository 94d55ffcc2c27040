"""Losses and the choice of triplets against references that loop."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.training.losses import (
    distances,
    random_triplets,
    semi_hard_triplets,
    telemetry,
    triplet_loss,
)


def make(seed: int, n: int, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(seed)
    return torch.randn(n, 4), torch.randint(classes, (n,))


def naive_triplet_loss(z, labels, triplets, margin):
    terms = [
        max(0.0, float((z[a] - z[p]).norm() - (z[a] - z[n]).norm() + margin))
        for a, p, n in zip(*(t.tolist() for t in triplets), strict=True)
    ]
    return sum(terms) / len(terms) if terms else 0.0


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 9999), n=st.integers(1, 24), classes=st.integers(1, 6))
def test_random_triplets_are_every_pair_once_with_another_class(seed, n, classes):
    z, labels = make(seed, n, classes)
    a, p, negative = random_triplets(labels)
    want = {
        (i, j)
        for i in range(n)
        for j in range(n)
        if i != j and labels[i] == labels[j] and (labels != labels[i]).any()
    }
    assert set(zip(a.tolist(), p.tolist(), strict=True)) == want
    assert len(a) == len(want)
    assert (labels[a] != labels[negative]).all()
    got = triplet_loss(distances(z), (a, p, negative), 0.7)
    assert got.item() == pytest.approx(naive_triplet_loss(z, labels, (a, p, negative), 0.7), abs=1e-5)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 9999), n=st.integers(2, 20), classes=st.integers(1, 4), width=st.floats(0.01, 2.0))
def test_semi_hard_negatives_are_in_the_band_where_one_exists(seed, n, classes, width):
    z, labels = make(seed, n, classes)
    distance = distances(z)
    for a, p, negative in zip(
        *(t.tolist() for t in semi_hard_triplets(distance, labels, width)), strict=True
    ):
        assert labels[negative] != labels[a]
        reach = distance[a, p]
        band = [
            c
            for c in range(n)
            if labels[c] != labels[a] and reach < distance[a, c] < reach + torch.tensor(width)
        ]
        if band:
            assert negative in band


def test_negatives_are_drawn_evenly():
    torch.manual_seed(0)
    labels = torch.tensor([0, 0, 1, 2, 3, 4])
    drawn = torch.cat([random_triplets(labels)[2] for _ in range(2000)])
    counts = torch.bincount(drawn, minlength=6)[2:].float()
    assert (counts / counts.mean() - 1).abs().max() < 0.1


def test_gradient_at_equal_images_is_finite():
    z = torch.ones(4, 3, requires_grad=True)
    labels = torch.tensor([0, 0, 1, 1])
    triplet_loss(distances(z), random_triplets(labels), 1.0).backward()
    assert z.grad is not None
    assert z.grad.isfinite().all()


def test_telemetry_by_hand():
    z = torch.tensor([[0.0], [1.0], [10.0], [11.0]])
    seen = telemetry(z, torch.tensor([0, 0, 1, 1]))
    assert seen["mean_distance"] == pytest.approx((2 * 1 + 2 * 10 + 9 + 11) / 6)
    assert seen["separability"] == pytest.approx((10 - 1) / 7)
