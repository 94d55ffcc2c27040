"""Radii of smoothed embedders: exact cases, what dominates what, and how often they are wrong."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.stats import beta, binomtest, norm

from holdfast.errors import ConfigError
from holdfast.proofs.smoothing import Answers, Pairs, candidate_pairs, class_pairs
from holdfast.proofs.smoothing.betting import GRID, Bets, Tangents, knots_of
from holdfast.proofs.smoothing.confidence import ball, mean_below, printed_slack, share_below
from holdfast.proofs.smoothing.radius import half_space_radius, printed_radius, vote_radius

SIGMA = 0.25


def unit(rng, *shape):
    v = rng.normal(size=shape)
    return v / np.linalg.norm(v, axis=-1, keepdims=True)


def one(value):
    return np.array([value], dtype=np.float64)


def shifted(share, rho):
    return norm.cdf(norm.ppf(share) - rho)


def whole_radius(seen, shares, threshold):
    """The radius from a distribution that is known: P(X ≥ seen) = shares, seen rising; slow, and by definition."""

    def least(rho):
        return -1 + float(np.diff(seen, prepend=-1.0) @ shifted(shares, rho)) - threshold

    if least(30) > 0:
        return math.inf
    return SIGMA * brentq(least, 0, 30) if least(0) > 0 else 0.0


@pytest.mark.parametrize("x", [0.01, 0.1, 0.4, 1.0])
def test_a_step_function_has_its_distance_for_a_radius(x):
    """h = ±F by the sign of one coordinate: E h passes 0 exactly at the step, x away."""
    share = norm.cdf(x / SIGMA)
    mean = 2 * share - 1
    assert half_space_radius(one(mean), one(0.0), SIGMA, 1.0)[0] == pytest.approx(x)
    assert whole_radius(np.array([1.0]), np.array([share]), 0.0) == pytest.approx(x)
    assert vote_radius(one(share), SIGMA)[0] == pytest.approx(x)
    # Twice F and twice the projection are the same question.
    assert half_space_radius(one(2 * mean), one(0.0), SIGMA, 2.0)[0] == pytest.approx(x)


def test_the_ends_of_the_range():
    assert half_space_radius(one(0.2), one(-1.5), SIGMA, 1.0)[0] == np.inf
    assert half_space_radius(one(-1.7), one(-1.5), SIGMA, 1.0)[0] == np.inf, "nothing is below −F"
    assert half_space_radius(one(0.2), one(0.2), SIGMA, 1.0)[0] == 0
    assert half_space_radius(one(-0.2), one(0.2), SIGMA, 1.0)[0] == 0
    assert printed_radius(one(-0.1), SIGMA, 1.0)[0] == 0
    assert vote_radius(one(0.5), SIGMA)[0] == 0
    assert vote_radius(one(0.9), SIGMA, need=0.6)[0] < vote_radius(one(0.9), SIGMA)[0]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), dim=st.integers(2, 12), spread=st.floats(0.02, 1.5))
def test_the_whole_distribution_beats_the_mean_and_the_mean_beats_the_printed_radius(seed, dim, spread):
    rng = np.random.default_rng(seed)
    centre, nearer, farther = unit(rng, 3, dim)
    h = centre + spread * rng.normal(size=(400, dim))
    h /= np.maximum(1.0, np.linalg.norm(h, axis=1, keepdims=True))
    g = h.mean(0)
    if np.linalg.norm(g - nearer) > np.linalg.norm(g - farther):
        nearer, farther = farther, nearer
    pairs = Pairs.of(nearer[None], farther[None])
    assert pairs.directions @ g > pairs.thresholds
    seen = np.sort(h @ pairs.directions[0])
    # These 400 vectors are the whole distribution here.
    shares = 1 - np.arange(400) / 400
    whole = whole_radius(seen, shares, float(pairs.thresholds[0]))
    half = half_space_radius(one(seen.mean()), pairs.thresholds, SIGMA, 1.0)[0]
    margin = np.linalg.norm(g - farther) - np.linalg.norm(g - nearer)
    printed = printed_radius(one(margin), SIGMA, 1.0)[0]
    assert whole >= half * (1 - 1e-9)
    assert half >= printed * (1 - 1e-9)
    assert printed > 0


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), dim=st.integers(2, 40), n=st.sampled_from([100, 1000, 20000]))
def test_on_samples_the_printed_form_is_never_above(seed, dim, n):
    rng = np.random.default_rng(seed)
    nearer, farther = unit(rng, 2, dim)
    spread = rng.uniform(0.01, 0.5)
    draw = lambda count: nearer + spread * rng.normal(size=(count, dim))  # noqa: E731
    first, h = (v / np.maximum(1.0, np.linalg.norm(v, axis=1, keepdims=True)) for v in (draw(50), draw(n)))
    answers = Answers(Pairs.of(nearer[None], farther[None]), first, 1.0)
    answers.add(h)
    g = h.mean(0)
    margin = np.linalg.norm(g - farther) - np.linalg.norm(g - nearer) - printed_slack(n, 0.01, dim, 1.0)
    printed = printed_radius(one(margin), SIGMA, 1.0)[0]
    for form in ("cdf", "half-space", "ball"):
        assert answers.radii(SIGMA, 0.01, form)[0] >= printed


def test_confidence_bounds_are_the_textbooks():
    for k, n in ((0, 10), (1, 10), (7, 10), (10, 10)):
        want = beta.ppf(0.05, k, n - k + 1) if k else 0.0
        assert share_below(np.array([k]), n, 0.05)[0] == pytest.approx(want)
    assert mean_below(one(0.5), 200, 0.01, 1.0)[0] == pytest.approx(0.5 - math.sqrt(2 * math.log(100) / 200))
    assert ball(100, 0.01, 2.0) == pytest.approx(0.2 * (1 + math.sqrt(2 * math.log(100))))
    assert printed_slack(3, 0.04, 99, 1.0) == pytest.approx(4 * math.sqrt(8 * math.log(10**4) / 9))


def smooth_mean(x):
    return quad(lambda z: math.tanh(3 * (x + SIGMA * z)) * norm.pdf(z), -8, 8)[0]


@pytest.mark.parametrize(
    ("h", "g"),
    [(np.sign, lambda x: 2 * norm.cdf(x / SIGMA) - 1), (lambda u: np.tanh(3 * u), smooth_mean)],
    ids=["step", "smooth"],
)
@pytest.mark.parametrize("form", ["cdf", "half-space", "ball"])
def test_a_radius_is_wrong_no_more_often_than_alpha(h, g, form):
    """A line of images and a known g: the true radius is where g passes the threshold."""
    x, alpha, n, threshold = 0.2, 0.1, 120, 0.1
    true = x - brentq(lambda u: g(u) - threshold, -1, x)
    pairs = Pairs(np.ones((1, 1)), one(threshold))
    rng = np.random.default_rng(0)
    wrong, repeats, sizes = 0, 2000, []
    for _ in range(repeats):
        first, samples = (h(x + SIGMA * rng.normal(size=(count, 1))) for count in (30, n))
        answers = Answers(pairs, first, 1.0)
        answers.add(samples)
        sizes.append(answers.radii(SIGMA, alpha, form)[0])
        wrong += sizes[-1] > true
    assert binomtest(wrong, repeats, alpha, alternative="greater").pvalue > 1e-3
    assert 0 < np.mean(sizes) < true


def test_the_kth_smallest_radius_is_wrong_no_more_often_than_alpha():
    """Forty thresholds on one projection: at a radius at most k − 1 of them may be passed."""
    x, alpha, n, k = 0.2, 0.2, 150, 3
    g = lambda u: 2 * norm.cdf(u / SIGMA) - 1  # noqa: E731
    thresholds = np.linspace(-0.2, 0.2, 40)
    radii = np.sort([x - brentq(lambda u, t=t: g(u) - t, -2, 2) for t in thresholds])
    pairs = Pairs(np.ones((40, 1)), thresholds)
    rng = np.random.default_rng(1)
    wrong, repeats = 0, 1000
    for _ in range(repeats):
        first, samples = (np.sign(x + SIGMA * rng.normal(size=(count, 1))) for count in (30, n))
        answers = Answers(pairs, first, 1.0)
        answers.add(samples[:100])
        answers.add(samples[100:])
        wrong += answers.top_radius(k, SIGMA, alpha) > radii[k - 1]
    assert answers.n == n
    assert binomtest(wrong, repeats, alpha, alternative="greater").pvalue > 1e-3
    assert answers.top_radius(41, SIGMA, alpha) == np.inf
    nobody = Answers(Pairs(np.empty((0, 1)), np.empty(0)), first, 1.0)
    nobody.add(samples)
    assert nobody.top_radius(1, SIGMA, alpha) == np.inf


@pytest.mark.parametrize("n", [60, 600])
def test_a_rare_sample_far_below_all_others_is_reckoned_with(n):
    """At −F once in n: most runs never see it, and the radius has to leave room for it all the same."""
    x, alpha, rare = 0.3, 0.2, 1 / n
    cut = norm.ppf(rare)
    h = lambda z: np.where(z < cut, -1.0, np.clip(0.3 + 0.02 * z, -1, 1))  # noqa: E731

    def g(u):
        return quad(lambda z: float(h(z)) * norm.pdf(z - (u - x) / SIGMA), -9, 9, points=[cut], limit=200)[0]

    threshold = g(x) - 0.04
    true = x - brentq(lambda u: g(u) - threshold, x - 2, x)
    rng = np.random.default_rng(4)
    wrong, repeats, sizes = 0, 600, []
    for _ in range(repeats):
        answers = Answers(Pairs(np.ones((1, 1)), one(threshold)), h(rng.normal(size=(40, 1))), 1.0)
        answers.add(h(rng.normal(size=(n, 1))))
        sizes.append(answers.radii(SIGMA, alpha)[0])
        wrong += sizes[-1] > true
    assert binomtest(wrong, repeats, alpha, alternative="greater").pvalue > 1e-3
    if n > 100:
        assert np.mean(sizes) > 0


@settings(max_examples=60, deadline=None)
@given(n=st.integers(5, 200_000), alpha=st.floats(1e-6, 0.5), rho=st.floats(0, 20), share=st.floats(0, 1))
def test_no_tangent_is_above_and_all_fall(n, alpha, rho, share):
    """A + B·u ≤ Φ(Φ⁻¹(u) − ρ), and A and A + B fall with ρ: what a certificate rests on, and finding it by halving."""
    tangents = Tangents.of(n, alpha)
    lows, slopes = tangents(np.array([rho, 1.02 * rho + 1e-3]))
    assert (lows[0] + slopes[0] * share <= shifted(share, rho) + 1e-12).all()
    assert (np.diff(lows, axis=0) <= 1e-15).all()
    assert (np.diff(lows + slopes, axis=0) <= 1e-15).all()
    if rho < 3:
        # At its own share each is exact, up to where its low end is held.
        exact = rho <= tangents.turns
        met = (lows + slopes * norm.cdf(tangents.places))[0]
        assert met[exact] == pytest.approx(shifted(norm.cdf(tangents.places), rho)[exact], abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    n=st.sampled_from([1, 40, 500]),
    spread=st.sampled_from([0.0, 1e-4, 0.05, 0.6]),
)
def test_samples_shared_out_win_no_more_than_they_do_one_by_one(seed, n, spread):
    """The product over samples, each by itself, is at least what their shares on knots say, and hardly more."""
    rng = np.random.default_rng(seed)
    centre = unit(rng, 1, 5)
    first, h = (centre + spread * rng.normal(size=(count, 5)) for count in (20, n))
    first, h = (v / np.maximum(1.0, np.linalg.norm(v, axis=1, keepdims=True)) for v in (first, h))
    answers = Answers(Pairs.of(unit(rng, 7, 5), unit(rng, 7, 5)), first, 1.0)
    answers.add(h[: n // 2])
    answers.add(h[n // 2 :])
    assert answers.shared.sum(1) == pytest.approx(n)
    assert (answers.shared >= 0).all()
    seen = h @ answers.pairs.directions.T
    bets = Bets.placed(answers.knots, answers.shared, answers.pairs.thresholds, n, 0.01)
    for rho in (0.0, 0.3, 1.5):
        pays, owed = bets._pays(slice(None), np.full(7, rho))
        for j in range(7):
            knots = answers.knots[j]
            assert (np.diff(knots) >= 0).all()
            exact = np.interp(seen[:, j], knots, pays[j])
            factors = 1 + bets.stakes[j] * (exact - owed[j])
            if bets.stakes[j] * owed[j] <= 1:
                logs = np.log(np.maximum(1 + bets.stakes[j] * (pays[j] - owed[j]), 1e-300))
                shared = float(answers.shared[j] @ logs)
                assert shared <= np.log(np.maximum(factors, 1e-300)).sum() + 1e-7
                inside = (seen[:, j] > knots[1]) & (seen[:, j] < knots[-1])
                if inside.all():
                    assert shared >= np.log(np.maximum(factors, 1e-300)).sum() - 0.1 * n


def test_a_bet_is_fair_where_its_claim_is_just_false():
    """E ∏ ≤ 1 for a distribution whose least mean at ρ is the threshold: the exact expectation of one factor."""
    rng = np.random.default_rng(7)
    for _ in range(200):
        places = np.sort(rng.uniform(-1, 1, 5))
        weights = rng.dirichlet(np.full(5, 0.5))
        rho = rng.uniform(0, 2)
        reached = weights[::-1].cumsum()[::-1]
        threshold = -1 + float(np.diff(places, prepend=-1.0) @ shifted(np.minimum(reached, 1.0), rho))
        knots = knots_of(one(rng.uniform(-0.5, 0.5)), one(rng.uniform(0.01, 0.4)), 1.0)
        bets = Bets.placed(knots, np.zeros_like(knots), one(threshold), int(rng.choice([20, 1000])), 0.01)
        pays, owed = bets._pays(slice(None), one(rho))
        factor = 1 + bets.stakes[0] * (np.interp(places, knots[0], pays[0]) - owed[0])
        if bets.stakes[0] * owed[0] <= 1:
            assert float(factor @ weights) <= 1 + 1e-9
            assert (factor >= -1e-9).all()


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), spread=st.floats(0.01, 1.0), n=st.sampled_from([30, 1000]))
def test_what_is_won_at_a_radius_is_won_below_it(seed, spread, n):
    rng = np.random.default_rng(seed)
    h = unit(rng, 1, 6) + spread * rng.normal(size=(n + 30, 6))
    h /= np.maximum(1.0, np.linalg.norm(h, axis=1, keepdims=True))
    answers = Answers(Pairs.of(unit(rng, 40, 6), unit(rng, 40, 6)), h[:30], 1.0)
    answers.add(h[30:])
    bets = answers._bets(0.05, slice(None))
    won = np.array([bets.won(np.full(40, rho)) for rho in np.arange(0, 4, 0.05)])
    assert (np.diff(won.astype(int), axis=0) <= 0).all()
    assert GRID[0] == -5


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), k=st.integers(1, 4), form=st.sampled_from(["cdf", "half-space", "ball"]))
def test_the_kth_radius_of_a_group_is_that_of_its_pairs(seed, k, form):
    rng = np.random.default_rng(seed)
    h = unit(rng, 1, 6) + 0.2 * rng.normal(size=(300, 6))
    h /= np.maximum(1.0, np.linalg.norm(h, axis=1, keepdims=True))
    answers = Answers(Pairs.of(unit(rng, 30, 6), unit(rng, 30, 6)), h[:30], 1.0)
    answers.add(h[30:])
    # Some are passed by nothing, some by everything.
    answers.pairs.thresholds[:6] = [-2, -2, 2, 2, -2, 2]
    groups, others = rng.integers(-1, 3, 30), rng.choice([0.0, 0.1, 0.4, np.inf], (3, 2))
    found = answers.kth_radii(groups, k, SIGMA, 0.02, form, others)
    each = answers.radii(SIGMA, 0.02, form)
    for group in range(3):
        every = np.sort([*each[groups == group], *others[group], *[np.inf] * k])
        assert found[group] == pytest.approx(every[k - 1], abs=1e-7)


def test_pairs_say_who_is_nearer():
    rng = np.random.default_rng(2)
    nearer, farther, points = rng.normal(size=(3, 50, 5))
    pairs = Pairs.of(nearer, farther)
    said = np.einsum("ij,ij->i", pairs.directions, points) > pairs.thresholds
    assert (
        said == (np.linalg.norm(points - nearer, axis=1) < np.linalg.norm(points - farther, axis=1))
    ).all()
    equal = Pairs.of(nearer[:1], nearer[:1])
    answers = Answers(equal, points, 4.0)
    answers.add(points)
    assert answers.radii(SIGMA, 0.01)[0] == 0


def test_every_other_vector_meets_the_positive_that_keeps_it_off_best():
    rng = np.random.default_rng(3)
    mean, same, other = rng.normal(size=4), rng.normal(size=(6, 4)), rng.normal(size=(9, 4))
    pairs = class_pairs(mean, same, other)
    for j, negative in enumerate(other):
        margins = []
        for positive in same:
            single = Pairs.of(positive[None], negative[None])
            margins.append(float(single.directions[0] @ mean - single.thresholds[0]))
        assert pairs.directions[j] @ mean - pairs.thresholds[j] == pytest.approx(max(margins))
    assert len(candidate_pairs(same[0], other)) == 9
    with pytest.raises(ConfigError, match="both need a vector"):
        class_pairs(mean, same[:0], other)
