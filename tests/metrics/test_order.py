"""The overlap of two rankings within a class, against a slow reference and cases with known answers."""

from __future__ import annotations

import math

import pytest
import torch

from holdfast.errors import DataError
from holdfast.metrics import chance_overlap, class_overlap


def by_hand(one, other, same, k):
    shares = []
    for a, b, mine in zip(one.tolist(), other.tolist(), same.tolist(), strict=True):
        own = [c for c, right in enumerate(mine) if right]
        if len(own) <= k:
            shares.append(math.nan)
            continue
        first, second = (set(sorted(own, key=lambda c, row=row: (row[c], c))[:k]) for row in (a, b))
        shares.append(len(first & second) / k)
    return shares


@pytest.mark.parametrize("seed", range(5))
def test_it_is_the_share_of_common_neighbours(seed):
    chance = torch.Generator().manual_seed(seed)
    one, other = (torch.randint(0, 6, (7, 20), generator=chance).float() for _ in range(2))
    same = torch.rand(7, 20, generator=chance) < 0.4
    found = class_overlap(one, other, same, 3)
    assert torch.allclose(found, torch.tensor(by_hand(one, other, same, 3)).double(), equal_nan=True)


def test_known_answers():
    near = torch.arange(6.0)[None]
    same = torch.tensor([[True, True, True, True, False, False]])
    assert class_overlap(near, near, same, 2).item() == 1
    assert class_overlap(near, -near, same, 2).item() == 0
    # The two nearest by `near` are 0 and 1; with 1 nearest of all and 0 farthest, one is left.
    assert class_overlap(near, torch.tensor([[9.0, 0, 1, 2, 0, 0]]), same, 2).item() == 0.5
    assert chance_overlap(same, 2).item() == 0.5
    assert math.isnan(class_overlap(near, near, same, 4).item())
    assert math.isnan(chance_overlap(same, 4).item())


def test_a_random_order_is_at_chance():
    chance = torch.Generator().manual_seed(0)
    one, other = (torch.rand(400, 60, generator=chance) for _ in range(2))
    same = torch.ones(400, 60, dtype=torch.bool)
    assert class_overlap(one, other, same).mean().item() == pytest.approx(1 / 6, abs=0.02)
    assert chance_overlap(same).mean().item() == pytest.approx(1 / 6)


def test_rankings_of_other_queries_are_refused():
    with pytest.raises(DataError, match="differ"):
        class_overlap(torch.zeros(2, 3), torch.zeros(3, 3), torch.ones(2, 3, dtype=torch.bool))
    with pytest.raises(DataError, match="at least 1"):
        class_overlap(torch.zeros(2, 3), torch.zeros(2, 3), torch.ones(2, 3, dtype=torch.bool), 0)
