"""Query and candidates altered together: exact given the boxes, and never less than the distance form."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.bounds import Box
from holdfast.certify import AlteredBoth, nearest
from holdfast.certify.kernels import least_lead

SHAPES = {
    "seed": st.integers(0, 99_999),
    "candidates": st.integers(1, 9),
    "d": st.integers(1, 5),
    "size": st.sampled_from([0.0, 0.02, 0.1, 0.3, 1.0]),
}


def boxes(seed: int, count: int, d: int, size: float) -> tuple[Box, torch.Generator]:
    g = torch.Generator().manual_seed(seed)
    centre = torch.randn(count, d, generator=g, dtype=torch.float64)
    radius = size * torch.rand(count, d, generator=g, dtype=torch.float64)
    return Box(centre, radius * (torch.rand(count, d, generator=g) < 0.8)), g


def lead(z: torch.Tensor, near: Box, far: Box) -> torch.Tensor:
    """‖z − c‖² − ‖z − ĉ‖² for c at its nearest to z and ĉ at its farthest, coordinate by coordinate."""
    closest = torch.relu((z - near.centre).abs() - near.radius).square()
    return closest - ((z - far.centre).abs() + far.radius).square()


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 99_999), size=st.sampled_from([0.0, 0.05, 0.5, 3.0]))
def test_the_least_lead_is_that_of_a_fine_grid(seed, size):
    """In each coordinate the least value over 2,001 places of the interval, both ends among them."""
    three, _ = boxes(seed, 3, 4, size)
    z, near, far = (three.take(slice(i, i + 1)) for i in range(3))
    grid = z.lower + (z.upper - z.lower) * torch.linspace(0, 1, 2001, dtype=torch.float64)[:, None]
    grid[-1] = z.upper[0]
    want = lead(grid, near, far).amin(0).sum()
    tensors = (z.lower, z.upper, near.centre, near.radius, far.centre, far.radius)
    found = least_lead(*(t[0].numpy() for t in tensors))
    assert found == pytest.approx(want.item(), abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(**SHAPES)
def test_a_pair_is_open_exactly_if_some_choice_brings_it_level(seed, candidates, d, size):
    """Every open pair has a witness: a query and two candidates of their boxes; no sure pair has one."""
    query, _ = boxes(seed, 1, d, size)
    pool, _ = boxes(seed + 1, candidates, d, size)
    hits = nearest(query.centre, pool.centre, candidates)
    bounds = AlteredBoth(query, pool).ranks(hits)
    old = AlteredBoth(query, pool, "paper").ranks(hits)
    assert (bounds.worst <= old.worst).all()
    assert (bounds.best >= old.best).all()

    def sure(c: int, own: int) -> bool:
        near, far = pool.take(slice(c, c + 1)), pool.take(slice(own, own + 1))
        ends = torch.minimum(lead(query.lower, near, far), lead(query.upper, near, far))
        z = torch.where(
            lead(query.lower, near, far) <= lead(query.upper, near, far), query.lower, query.upper
        )
        moved = torch.minimum(torch.maximum(z, near.lower), near.upper)
        away = far.centre + far.radius * torch.where(far.centre >= z, 1.0, -1.0)
        reached = (z - moved).square().sum() - (z - away).square().sum()
        assert reached == pytest.approx(ends.sum().item(), abs=1e-9)
        return bool(reached > 1e-9)

    for column, hit in enumerate(hits[0].tolist()):
        others = [c for c in range(candidates) if c != hit]
        assert bounds.worst[0, column] == candidates - sum(sure(c, hit) for c in others)
        assert bounds.best[0, column] == 1 + sum(sure(hit, c) for c in others)


@settings(max_examples=60, deadline=None)
@given(k=st.integers(1, 4), **SHAPES)
def test_a_certified_hit_is_there_under_attack(k, seed, candidates, d, size):
    query, g = boxes(seed, 1, d, size)
    pool, _ = boxes(seed + 1, candidates, d, size)
    same = torch.randint(0, 2, (1, candidates), generator=g) == 1
    ahead = AlteredBoth(query, pool).unbeaten(same)
    assert (ahead <= AlteredBoth(query, pool, "paper").unbeaten(same)).all()
    if ahead[0] >= k:
        return
    for _ in range(40):
        z, c = (
            box.centre
            + box.radius * (2 * torch.rand(box.centre.shape, generator=g, dtype=torch.float64) - 1).sign()
            for box in (query, pool)
        )
        distance = (c - z).norm(dim=1)
        assert int((distance[~same[0]] <= distance[same[0]].min()).sum()) < k


def test_what_the_shared_query_gains():
    """Candidates at 1 ± 0.1 and 3 ± 0.1, the query at 0 ± 0.85: 1 + 0.1 + 0.85 < 3 − 0.1 − 0.85 does not hold …

    … but the query cannot be near one and far from the other at once: at 0.85 the distances are at
    most 0.25 and at least 2.05.
    """
    query = Box(torch.zeros(1, 1), torch.full((1, 1), 0.85))
    pool = Box(torch.tensor([[1.0], [3.0]]), torch.full((2, 1), 0.1))
    hits = torch.tensor([[0, 1]])
    assert AlteredBoth(query, pool).ranks(hits).worst.tolist() == [[1, 2]]
    wide = Box(torch.zeros(1, 1), torch.full((1, 1), 0.95))
    assert AlteredBoth(wide, pool, "paper").ranks(hits).worst.tolist() == [[2, 2]]
    assert AlteredBoth(wide, pool).ranks(hits).worst.tolist() == [[1, 2]]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_not_finite_is_unknown(bad):
    query, _ = boxes(0, 2, 3, 0.01)
    pool, _ = boxes(1, 5, 3, 0.01)
    query.radius[1, 1] = bad
    attack = AlteredBoth(query, pool)
    bounds = attack.ranks(nearest(query.centre, pool.centre, 2))
    assert bounds.known.tolist() == [[True, True], [False, False]]
    assert bounds.worst[1].tolist() == [5, 5]
    same = torch.tensor([True, False, False, False, False]).expand(2, 5)
    assert attack.unbeaten(same)[1] == 4
