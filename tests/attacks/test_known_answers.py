"""Linear embedders, for which the best an attacker can do is known exactly."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from holdfast.attacks import Attack, Candidates, Given, Nes, Pgd, Spsa, Universal, objective
from holdfast.threat import Threat

PIXELS, ROWS = 6, 8


class Linear(nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.register_buffer("weight", weight)

    def forward(self, images):
        return images.flatten(1) @ self.weight.T


def scene(dim, seed=0):
    source = torch.Generator().manual_seed(seed)
    embedder = Linear(torch.randn((dim, PIXELS), generator=source, dtype=torch.float64))
    images = torch.rand((ROWS, 1, 2, 3), generator=source, dtype=torch.float64)
    candidates = embedder(torch.rand((30, 1, 2, 3), generator=source, dtype=torch.float64))
    return embedder, images, Candidates(candidates, torch.arange(30) % 3), source


def reach(embedder, images, norm, eps):
    """The least and the greatest value of w·x over the allowed images of each (dim 1)."""
    ends = []
    for sign in (-1, 1):
        way = sign * embedder.weight[0]
        if norm == "linf":
            best = (images.flatten(1) + eps * way.sign()).clamp(0, 1)
        else:
            # The best point is x + t·w cut off at the domain, for the t that uses the radius up.
            low, high = torch.zeros(ROWS, 1), torch.full((ROWS, 1), 1e6)
            for _ in range(200):
                t = (low + high) / 2
                point = (images.flatten(1) + t * way).clamp(0, 1)
                inside = (point - images.flatten(1)).norm(dim=1, keepdim=True) <= eps
                low, high = torch.where(inside, t, low), torch.where(inside, high, t)
            best = (images.flatten(1) + low * way).clamp(0, 1)
        ends.append(best @ embedder.weight[0])
    return ends


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("name", ["qa+", "qa-", "ca+", "ca-", "es", "ltm", "gtm", "gtt", "er-query"])
def test_one_dimension_reaches_the_optimum(name, norm):
    """The vector is one number in a known interval: the best loss is found by looking everywhere."""
    eps = 0.2 if norm == "linf" else 0.4
    embedder, images, candidates, _ = scene(1, seed=4)
    clean = embedder(images)
    if name == "ltm":
        # The classes apart on the line: between them there is one way to go, elsewhere many dead ends.
        line = candidates.vectors.sort(dim=0).values + torch.linspace(-9, 9, 30).sign()[:, None] * 4
        candidates = Candidates(line, (line > line.mean()).long().flatten() * 2)
    targets = torch.arange(ROWS) + 3
    # A candidate leaves a query far to the left by one way; amid the candidates by two.
    queries = candidates.vectors - 6 * (name == "ca-")
    given = Given(candidates, torch.arange(ROWS) % 2 * 2, targets, queries=queries)
    wanted = objective(name, given)
    attack = Attack(wanted, Pgd(steps=40, restarts=6), Threat(norm, eps, "both"))
    altered = attack.run(embedder, images)
    low, high = reach(embedder, images, norm, eps)
    grid = torch.linspace(0, 1, 4001, dtype=torch.float64)[:, None]
    everywhere = (low + (high - low) * grid).flatten()[:, None]
    wish = wanted.bind(slice(0, ROWS), clean).take(torch.arange(ROWS).repeat(len(grid)))
    state = wish.assess(everywhere)
    loss, score = state.loss.view(len(grid), ROWS), state.score.view(len(grid), ROWS)
    if name == "es":
        best = loss.amin(0)
    else:
        # The best score there is, and the least loss among the points that have it.
        best = loss.masked_fill(score > score.amin(0), torch.inf).amin(0)
        assert (altered.score <= score.amin(0) + 1e-9).all()
    before = altered.loss_before
    gain, possible = before - altered.loss, before - best
    assert (gain >= 0.99 * possible - 1e-4 * before.abs() - 1e-9).all(), (gain, possible)


def test_es_reaches_the_best_corner():
    """The shift is a convex function of the image: its maximum is at one of the 64 corners."""
    embedder, images, _, _ = scene(3)
    eps = 0.15
    corners = torch.tensor(list(itertools.product([-1.0, 1.0], repeat=PIXELS)), dtype=torch.float64)
    points = (images.flatten(1)[:, None] + eps * corners).clamp(0, 1)
    best = ((points - images.flatten(1)[:, None]) @ embedder.weight.T).norm(dim=2).amax(1)
    altered = Attack(objective("es", Given()), Pgd(steps=40, restarts=8), Threat("linf", eps)).run(
        embedder, images
    )
    assert (-altered.loss >= 0.99 * best).all()
    assert (-altered.loss <= best + 1e-9).all()
    assert torch.equal(altered.loss, -(embedder(altered.images) - embedder(images)).norm(dim=1))


def test_tma_reaches_a_target_that_can_be_reached():
    embedder, images, _, source = scene(2)
    eps = 0.1
    signs = torch.randint(0, 2, (ROWS, 1, 2, 3), generator=source) * 2 - 1
    targets = embedder((images + eps * signs).clamp(0, 1))
    given = Given(Candidates(targets), targets=torch.arange(ROWS))
    altered = Attack(objective("tma", given), Pgd(steps=60), Threat("linf", eps)).run(embedder, images)
    assert (altered.loss <= 0.01 * altered.loss_before).all()


def test_one_target_against_one_rival_is_decided_exactly():
    """Which of two candidates is nearer is linear in the vector: who can come first is known."""
    embedder, images, _, source = scene(3, seed=1)
    eps = 0.05
    right = 0
    for _ in range(5):
        pair = embedder(torch.rand((2, 1, 2, 3), generator=source, dtype=torch.float64))
        wanted = objective("qa+", Given(Candidates(pair), targets=torch.zeros(ROWS, dtype=torch.int64)), k=1)
        altered = Attack(wanted, Pgd(steps=40), Threat("linf", eps)).run(embedder, images)
        # ‖z − t‖² − ‖z − r‖² = ‖t‖² − ‖r‖² − 2 z·(t − r), z = Wx, is least at a corner of the box.
        way = embedder.weight.T @ (pair[0] - pair[1])
        corner = (images.flatten(1) + eps * way.sign()).clamp(0, 1)
        least = pair[0].square().sum() - pair[1].square().sum() - 2 * corner @ way
        assert altered.success.tolist() == (least < 0).tolist()
        right += int((least < 0).sum())
    assert 0 < right < 5 * ROWS


@pytest.mark.parametrize("optimiser", [Nes(queries=3000, sigma=0.01), Spsa(queries=3000, sigma=0.01)])
def test_black_box_finds_what_gradients_find(optimiser):
    embedder, images, candidates, _ = scene(1)
    wanted = objective("gtm", Given(candidates, torch.arange(ROWS) % 3))
    seen = 0

    def ask(batch):
        nonlocal seen
        seen += len(batch)
        assert (batch >= 0).all()
        assert (batch <= 1).all()
        return embedder(batch.double())

    altered = Attack(wanted, optimiser, Threat("linf", 0.1)).run(ask, images)
    exact = Attack(wanted, Pgd(), Threat("linf", 0.1)).run(embedder, images)
    assert (altered.score <= exact.score).all()
    gain, possible = altered.loss_before - altered.loss, exact.loss_before - exact.loss
    assert (gain >= 0.95 * possible).all()
    # What is said to be used is used, and nothing beyond the budget.
    assert seen == int(altered.queries.sum())
    assert (altered.queries <= 3000).all()
    assert (altered.gradients == 0).all()


def test_universal_perturbation_is_one_and_the_best_for_a_linear_wish():
    embedder, images, _, _ = scene(1)
    images = images * 0.5 + 0.25
    # Far away: the distance to it is linear in the vector, and the best change is the same for all.
    far = Candidates(torch.tensor([[1000.0], [0.0]], dtype=torch.float64), torch.tensor([1, 0]))
    wanted = objective("gtm", Given(far, torch.zeros(ROWS, dtype=torch.int64)))
    for batch in (ROWS, 3):
        altered = Attack(wanted, Universal(), Threat("linf", 0.1)).run(embedder, images, batch_size=batch)
        delta = altered.images - images
        assert torch.allclose(delta, delta[:1].expand_as(delta), atol=1e-12)
        assert torch.allclose(delta[0].flatten(), 0.1 * embedder.weight[0].sign(), atol=1e-9)
