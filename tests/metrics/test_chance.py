"""The chance level, against every order there is."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from holdfast.metrics import chance_hit_rate, chance_of_draw


@pytest.mark.parametrize("candidates", [1, 3, 6])
def test_chance_is_the_mean_over_every_order(candidates):
    orders = list(permutations(range(candidates)))
    for right in range(1, candidates + 1):
        for k in range(1, candidates + 1):
            hits = sum(any(item < right for item in order[:k]) for order in orders)
            found = chance_hit_rate(np.array([right]), candidates, k)
            assert found == pytest.approx(hits / len(orders), abs=1e-12)


def test_queries_have_their_own_numbers_and_the_hopeless_are_left_out():
    found = chance_hit_rate(np.array([1, 0, 2]), np.array([4, 4, 8]), 1)
    assert found == pytest.approx((1 / 4 + 2 / 8) / 2)
    assert chance_hit_rate(np.array([0]), 5, 1) is None
    assert chance_hit_rate(np.array([2]), 5, 9) == 1.0


def test_ten_even_classes_of_a_thousand():
    labels = np.arange(1000) % 10
    found = [chance_of_draw(labels, 1000, k) for k in (1, 10, 20, 40)]
    assert found == pytest.approx([0.10, 0.653, 0.881, 0.986], abs=5e-4)


def test_rare_classes_count_as_often_as_they_are_asked():
    labels = np.array([0] * 9 + [1])
    assert chance_of_draw(labels, 100, 1) == pytest.approx(0.9 * 0.9 + 0.1 * 0.1)
