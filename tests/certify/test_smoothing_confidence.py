"""How α is spent on samples, by known answers: bounds by their formulas, a bet by its rules, each one's share."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import beta, binom, norm

from holdfast.certify.smoothing import Answers, Pairs, Smoothing, check_samples
from holdfast.certify.smoothing.betting import CAUTION, GRID, Bets, Tangents, knots_of
from holdfast.certify.smoothing.confidence import ball, mean_below, share_below
from holdfast.certify.smoothing.pairs import PLAIN
from holdfast.certify.smoothing.radius import half_space_radius, vote_radius
from holdfast.errors import ConfigError
from holdfast.neighbours.perceptron import smoothing_radii

SIGMA, ALPHA = 0.25, 0.04


@pytest.mark.parametrize(("k", "n"), [(1, 10), (7, 10), (10, 10), (431, 500)])
def test_a_share_is_bounded_from_below(k, n):
    """At the bound, k or more of n have probability exactly α: with a smaller share they would have less."""
    low = float(share_below(np.array([k]), n, ALPHA)[0])
    assert low < k / n
    assert binom.sf(k - 1, n, low) == pytest.approx(ALPHA)
    assert low == pytest.approx(beta.ppf(ALPHA, k, n - k + 1))


def answers(thresholds, n: int = 400) -> Answers:
    """Samples 0.5 ± 0.2 of one projection, in turn, against some thresholds."""
    values = 0.5 + 0.2 * np.resize([-1.0, 1.0, 0.5, -0.5], n)[:, None]
    found = Answers(Pairs(np.ones((len(thresholds), 1)), np.array(thresholds)), values[:40], 1.0)
    found.add(values)
    return found


THRESHOLDS = [0.1, 0.15, 0.2, 0.05, 0.3, 0.0]


@pytest.mark.parametrize("k", [1, 2, 4])
def test_the_kth_radius_spends_alpha_on_k_pairs(k):
    """Each of the k pairs that decide has α/k, whatever the form."""
    given = answers(THRESHOLDS)
    threshold = sorted(THRESHOLDS, reverse=True)[k - 1]
    low = 0.5 - math.sqrt(2 * math.log(k / ALPHA) / 400)
    expected = SIGMA * (norm.ppf((low + 1) / 2) - norm.ppf((threshold + 1) / 2))
    assert given.top_radius(k, SIGMA, ALPHA, "half-space") == pytest.approx(expected, abs=1e-6)
    low = 0.5 - (1 + math.sqrt(2 * math.log(k / ALPHA))) / 20
    expected = max(0.0, SIGMA * (norm.ppf((low + 1) / 2) - norm.ppf((threshold + 1) / 2)))
    assert given.top_radius(k, SIGMA, ALPHA, "ball") == pytest.approx(expected, abs=1e-6)
    each = np.sort(given.radii(SIGMA, ALPHA / k))
    assert given.top_radius(k, SIGMA, ALPHA) == pytest.approx(each[k - 1], abs=1e-6)
    if k > 1:
        assert given.top_radius(k, SIGMA, ALPHA) < np.sort(given.radii(SIGMA, ALPHA))[k - 1] - 1e-3


def test_the_two_forms_of_a_radius_share_alpha():
    """The bet has 95 % of it, the mean 5 %: together no more than all."""
    given = answers([0.1])
    bets = Bets.placed(given.knots, given.shared, given.pairs.thresholds, 400, (1 - PLAIN) * ALPHA)
    least = math.log(1 / ((1 - PLAIN) * ALPHA))
    assert least <= bets.least <= least + 1e-5
    used = given._bets(ALPHA, slice(None))
    assert used.least == bets.least
    mean = half_space_radius(
        mean_below(np.array([0.5]), 400, PLAIN * ALPHA, 1.0), np.array([0.1]), SIGMA, 1.0
    )
    assert given._plain(SIGMA, ALPHA, "cdf") == pytest.approx(mean)


def test_a_bet_that_could_lose_more_than_there_is_proves_nothing():
    """All samples at the top, so that any stake wins; one above 1/m is no bet, however much it would have won."""
    knots = knots_of(np.array([0.5]), np.array([0.1]), 1.0)
    shared = np.zeros_like(knots)
    shared[0, -1] = 1000.0
    bets = Bets.placed(knots, shared, np.array([0.2]), 1000, 0.01)
    rho = np.array([0.5])
    pays, owed = bets._pays(slice(None), rho)
    assert owed[0] > 0
    assert pays[0, 0] == 0, "at −F nothing is paid: a stake loses all that it owes"
    assert replace(bets, stakes=0.999 / owed).won(rho).tolist() == [True]
    assert replace(bets, stakes=1.001 / owed).won(rho).tolist() == [False]
    assert replace(bets, stakes=5 / owed).won(rho).tolist() == [False]
    # A stake is fixed with room to spare at the radius that is expected; far beyond it is none any more.
    assert (bets.stakes * bets._pays(slice(None), np.zeros(1))[1] <= CAUTION + 1e-12).all()


def test_a_bet_is_lost_where_its_claim_is_false_by_its_own_samples():
    """Half of the samples at −F: no stake makes a claim true that their mean refutes."""
    knots = knots_of(np.array([0.0]), np.array([0.5]), 1.0)
    shared = np.zeros_like(knots)
    shared[0, [0, -1]] = 500.0
    bets = Bets.placed(knots, shared, np.array([0.3]), 1000, 0.01)
    for stake in (1e-3, 0.1, 0.5, 0.7):
        assert not replace(bets, stakes=np.array([stake])).won(np.zeros(1)).any()


def test_a_bet_needs_one_over_alpha():
    """The product of its factors, sample by sample, is compared with 1/α."""
    knots = knots_of(np.array([0.5]), np.array([0.1]), 1.0)
    shared = np.zeros_like(knots)
    shared[0, -1] = 10.0
    bets = Bets.placed(knots, shared, np.array([0.2]), 10, 0.01)
    bets = replace(bets, stakes=np.array([0.3]))
    pays, owed = bets._pays(slice(None), np.zeros(1))
    product = (1 + 0.3 * (pays[0, -1] - owed[0])) ** 10
    for share, won in ((0.9, True), (1.1, False)):
        other = Bets.placed(knots, shared, np.array([0.2]), 10, 1 / (share * product))
        assert replace(other, stakes=np.array([0.3]), tangents=bets.tangents).won(np.zeros(1))[0] == won


def test_tangents_by_hand():
    """At ρ = 0 the shifted share is the share itself: A = 0 and B = 1; at ρ = ½ each meets the curve at its place."""
    tangents = Tangents.of(10**6, 0.01)
    lows, slopes = tangents(np.array([0.0, 0.5]))
    assert lows[0] == pytest.approx(0, abs=1e-12)
    assert slopes[0] == pytest.approx(1)
    places = tangents.places[tangents.turns >= 0.5]
    assert len(places) > 15
    met = (norm.cdf(tangents.places) * slopes[1] + lows[1])[tangents.turns >= 0.5]
    assert met == pytest.approx(norm.cdf(places - 0.5), abs=1e-12)
    for share in (0.0, 0.2, 0.5, 0.9, 1.0):
        assert (lows[1] + slopes[1] * share <= norm.cdf(norm.ppf(share) - 0.5) + 1e-12).all()


def test_samples_fall_to_the_knots_beside_them_by_hand():
    """A value a quarter of the way between two knots: three quarters to the lower one; above all, to the last."""
    given = Answers(Pairs(np.ones((1, 1)), np.zeros(1)), np.array([[-0.1], [0.1]]), 1.0)
    step = 0.25 * 0.1
    low = GRID[0] * 0.1
    for value, place, part in ((low + 3.25 * step, 4, 0.25), (low, 1, 0.0), (low + 0.5 * step, 1, 0.5)):
        given.shared[:] = 0
        given.add(np.array([[value]]))
        assert given.shared[0, place] == pytest.approx(1 - part)
        assert given.shared[0, place + 1] == pytest.approx(part)
    # What falls to a knot is counted a little below it, so that rounding does not count it higher.
    assert (given.knots[0, 1:] < low + step * np.arange(len(GRID))).all()
    given.shared[:] = 0
    given.add(np.array([[0.9]]))
    assert given.shared[0, -1] == 1
    given.shared[:] = 0
    given.add(np.array([[-0.75]]))
    # Between −F and the first knot, at −½: half of it each.
    assert given.shared[0, :2].tolist() == pytest.approx([0.5, 0.5])


def test_radii_of_known_numbers():
    one = np.array([0.8413447460685429])  # Φ(1)
    assert vote_radius(one, SIGMA)[0] == pytest.approx(SIGMA)
    assert vote_radius(np.array([0.9772498680518208]), SIGMA, need=one[0])[0] == pytest.approx(SIGMA)
    assert vote_radius(one, SIGMA, need=0.85)[0] == 0
    assert half_space_radius(2 * one - 1, np.zeros(1), SIGMA, 1.0)[0] == pytest.approx(SIGMA)
    assert half_space_radius(np.array([0.1]), np.array([0.2]), SIGMA, 1.0)[0] == 0
    assert ball(400, 0.01, 2.0) == pytest.approx(0.1 * (1 + math.sqrt(2 * math.log(100))))


def test_too_few_samples_are_refused_by_their_own_bound():
    """All of n agree: p ≥ α^(1/n) must be above what is needed."""
    how = Smoothing(0.1, n=10, alpha=0.01)
    check_samples(how, 1)
    with pytest.raises(ConfigError, match="take at least 14"):
        check_samples(how, 100)
    with pytest.raises(ConfigError, match="cannot certify anything"):
        check_samples(how, 1, need=0.64)


def test_the_first_samples_of_a_small_network_choose_and_do_not_answer():
    """Its first copies all vote for the class and half of the others do: nothing is certified by the first."""
    votes = torch.cat([torch.ones(50), torch.tensor([0.0, 1.0]).repeat(50)]).long()
    how = {"sigma": SIGMA, "n": 100, "first": 50, "alpha": 0.05, "chance": torch.Generator()}
    points, labels = torch.zeros(1, 2), torch.tensor([1])
    assert smoothing_radii(lambda x: votes, points, labels, **how).tolist() == [0.0]
    votes[50:] = 1
    expected = SIGMA * norm.ppf(0.05 ** (1 / 100))
    assert smoothing_radii(lambda x: votes, points, labels, **how).tolist() == [pytest.approx(expected)]
