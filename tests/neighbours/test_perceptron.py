"""Certified radii of small networks: exact for linear ones, never broken by gradients, and voted ones that hold."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from holdfast.neighbours.perceptron import (
    crown_radii,
    layers_of,
    least_margins,
    smoothing_radii,
    train_perceptron,
)


@pytest.fixture(scope="module")
def trained():
    random = np.random.default_rng(0)
    kinds = random.integers(0, 3, 300)
    vectors = np.array([[0.2, 0.2, 0.5], [0.8, 0.3, 0.5], [0.4, 0.9, 0.5]])[kinds] + 0.08 * random.normal(
        size=(300, 3)
    )
    network = train_perceptron(vectors, kinds, 3, hidden=16, epochs=30, batch=32, lr=0.01)
    return network, torch.from_numpy(vectors), torch.from_numpy(kinds)


def test_a_linear_network_is_exact():
    random = torch.Generator().manual_seed(0)
    weights, bias = torch.randn(4, 5, generator=random).double(), torch.randn(4, generator=random).double()
    points = torch.randn(20, 5, generator=random).double()
    scores = points @ weights.T + bias
    labels = scores.argmax(1)
    found = crown_radii([(weights, bias)], points, labels, 10.0)
    for row in range(20):
        gaps = [
            (scores[row, labels[row]] - scores[row, j]) / (weights[labels[row]] - weights[j]).norm()
            for j in range(4)
            if j != labels[row]
        ]
        assert float(found[row]) <= min(gaps)
        assert float(found[row]) == pytest.approx(float(min(gaps)), abs=2e-4)
    assert not crown_radii([(weights, bias)], points, (labels + 1) % 4, 10.0).any()


def test_no_move_within_the_radius_changes_the_class(trained):
    network, points, labels = trained
    network = nn.Sequential(*network).double()
    radii = crown_radii(layers_of(network), points, labels, 2.0)
    assert (radii > 0.05).float().mean() > 0.5
    chosen = radii > 0
    points, labels, radii = points[chosen], labels[chosen], radii[chosen]
    random = torch.Generator().manual_seed(1)
    for start in range(3):
        move = torch.randn(points.shape, generator=random).double()
        for _ in range(30):
            move = move / move.norm(dim=1, keepdim=True) * radii[:, None]
            moved = (points + move).requires_grad_()
            scores = network(moved)
            own = scores.gather(1, labels[:, None]).squeeze(1)
            other = scores.scatter(1, labels[:, None], -torch.inf).max(1).values
            assert (own > other).all(), start
            (grown,) = torch.autograd.grad((other - own).sum(), moved)
            move = move + 0.3 * radii[:, None] * grown / grown.norm(dim=1, keepdim=True).clamp(min=1e-12)
    lower = least_margins(layers_of(network), points, labels, radii)
    assert (lower > 0).all()
    network.float()


def test_votes_hold_within_their_radius(trained):
    network, points, labels = trained

    def classify(some):
        return network(some.float()).argmax(1)

    radii = smoothing_radii(
        classify, points[:40], labels[:40], sigma=0.1, n=500, first=50, alpha=0.01,
        chance=torch.Generator().manual_seed(0),
    )  # fmt: skip
    assert (radii > 0.05).float().mean() > 0.5
    chance = torch.Generator().manual_seed(2)
    for row in (radii > 0).nonzero().squeeze(1).tolist():
        direction = torch.randn(3, generator=chance).double()
        moved = points[row] + 0.95 * radii[row] * direction / direction.norm()
        votes = classify(moved[None] + 0.1 * torch.randn(2000, 3, generator=chance))
        assert torch.bincount(votes).argmax() == labels[row]
    wrong = smoothing_radii(
        classify, points[:5], (labels[:5] + 1) % 3, sigma=0.1, n=100, first=20, alpha=0.01,
        chance=torch.Generator().manual_seed(0),
    )  # fmt: skip
    assert not wrong.any()
