"""The form `cdf`: a bet on the samples that pays only where ⟨g(x + δ), w⟩ > t for every ‖δ‖₂ ≤ ρσ.

With G(s) = P(X ≥ s) for the projection X = ⟨h(x + z), w⟩, P(⟨h(x + δ + z), w⟩ ≥ s) ≥ φ(G(s)) where
φ(u) = Φ(Φ⁻¹(u) − ρ), so that ⟨g(x + δ), w⟩ ≥ −F + ∫ φ(G(s)) ds from −F on. φ is convex, and no tangent is above it: on
the interval b between two knots take the tangent at a number c_b, φ(u) ≥ A_b + B_b·u. Then

    ⟨g(x + δ), w⟩ ≥ −F + Σ_b d_b A_b + E Ψ(X),   Ψ(x) = Σ_b B_b · (how much of interval b is below x),

d_b the lengths. The c_b are those of the normal distribution with the mean and deviation of samples that serve for
nothing else: any c_b are right, and these are nearly best. What the whole distribution has to say has become one
mean, and a mean is bounded by betting (Waudby-Smith & Ramdas 2024): if ⟨g(x + δ), w⟩ ≤ t for some such δ, then
E Ψ(X) ≤ m = t + F − Σ_b d_b A_b, and ∏ᵢ (1 + λ(Ψ(Xᵢ) − m)) over the samples that answer has an expectation of at most
1 for every stake λ in [0, 1/m] that is fixed before them. It is 1/α or more with probability at most α (Markov). No α
is divided among levels, which is why this certifies more than bounds of G at many levels.

Two things make it cheap. The logarithm of a factor is concave between two knots, so a sample may be shared out
between them in proportion, which makes the sum of logarithms no larger: what is kept of n samples is one number a
knot. And a bet with a fixed stake that is won at ρ is won at every smaller one, so that radii are found by halving:
each factor is 1 + λ(−F − t + Σ_b d_b·(a mean of A_b and A_b + B_b)), and both fall with ρ. For c = Φ(z), A + B does by
Mills' ratio; A does until ρ = z + Φ′(z)/c, after which it is held where it is, still below φ, and B falls alone, since
ρ > z.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

Array = NDArray[np.float64]
STEP = 0.25
GRID = np.arange(-5.0, 3.0 + STEP / 2, STEP)
"""The knots above −F, in standard deviations from the mean of the first samples."""
CAUTION = 0.95
"""The stake is at most this share of the largest at the radius that is expected; the rest leaves room for more."""
FARTHEST = 64.0
"""In units of σ: what holds there holds without end."""
_SLACK = 1e-6
"""Added to ln(1/α): more than the rounding in a sum of millions of logarithms."""
_NUDGE = 1e-9
_MIDDLES = (GRID[:-1] + GRID[1:]) / 2
_EXPECTED = np.concatenate([[0.0], np.diff(ndtr(np.concatenate([[-np.inf], _MIDDLES, [np.inf]])))])
"""How much of a normal distribution falls to each knot."""
_LARGEST, _LOOKS = 8.0, 10
"""The largest ρ that is expected, and how often the expectation is halved."""
_ROWS = 2**14


@dataclass(frozen=True)
class Bets:
    """One bet for each pair: `won` says which prove their claim for ‖δ‖₂ ≤ ρσ."""

    knots: Array
    """A row for each pair, rising, from −F."""
    shared: Array
    """How much of the samples fell to each knot."""
    thresholds: Array
    stakes: Array
    tangents: Tangents
    least: float
    """ln(1/α), over the number of times that the samples count."""

    @classmethod
    def placed(
        cls, knots: Array, shared: Array, thresholds: Array, n: int, alpha: float, times: int = 1
    ) -> Bets:
        """Stakes by what is expected of n samples (`times` as many), before any of them is looked at."""
        tangents = Tangents.of(n * times, alpha)
        least = (np.log(1 / alpha) + _SLACK) / times
        bets = cls(knots, shared, thresholds, np.zeros(len(knots)), tangents, least)
        if not len(knots):
            return bets
        return replace(bets, stakes=np.concatenate([bets._stakes(rows, n) for rows in _chunks(len(knots))]))

    def won(self, rho: Array) -> NDArray[np.bool_]:
        """Whether each bet is won at its ρ."""
        found = np.empty(len(self.knots), dtype=np.bool_)
        for rows in _chunks(len(self.knots)):
            pays, owed = self._pays(rows, rho[rows])
            stakes = self.stakes[rows]
            factors = 1 + stakes[:, None] * (pays - owed[:, None])
            # Ψ is 0 at −F: a stake that could lose more than there is would be no bet.
            fair = stakes * owed <= 1
            found[rows] = fair & (_logs(factors, self.shared[rows]) >= self.least)
        return found

    def of_pairs(self, chosen: NDArray[np.bool_]) -> Bets:
        """The same of some pairs only."""
        return replace(
            self,
            knots=self.knots[chosen],
            shared=self.shared[chosen],
            thresholds=self.thresholds[chosen],
            stakes=self.stakes[chosen],
        )

    def _pays(self, rows: slice, rho: Array) -> tuple[Array, Array]:
        """Ψ at each knot, and m."""
        sizes, place = np.unique(rho, return_inverse=True)
        lows, slopes = self.tangents(sizes)
        knots = self.knots[rows]
        steps = np.diff(knots, axis=1)
        pays = np.zeros_like(knots)
        np.cumsum(steps * slopes[place], axis=1, out=pays[:, 1:])
        return pays, self.thresholds[rows] - knots[:, 0] - np.einsum("ij,ij->i", steps, lows[place])

    def _stakes(self, rows: slice, n: int) -> Array:
        """The stakes for the radii that samples of the normal distribution would win; 0 where nothing can be lost.

        With variance v of a sample's pay and a = ln(1/α)/n, the surplus that a stake λ needs is near a/λ + λv/2: least
        for √(2a/v), where λ is not at its end.
        """
        low = np.zeros(len(self.thresholds[rows]))
        high = np.full(len(low), _LARGEST)
        for _ in range(_LOOKS):
            middle = (low + high) / 2
            pays, owed = self._pays(rows, middle)
            factors = 1 + self._stake(pays, owed, n)[:, None] * (pays - owed[:, None])
            won = _logs(factors, n * _EXPECTED) >= self.least
            low, high = np.where(won, middle, low), np.where(won, high, middle)
        return self._stake(*self._pays(rows, low), n)

    def _stake(self, pays: Array, owed: Array, n: int) -> Array:
        spread = np.maximum(pays**2 @ _EXPECTED - (pays @ _EXPECTED) ** 2, 0.0)
        best = np.sqrt(
            np.divide(2 * self.least / n, spread, out=np.full_like(spread, np.inf), where=spread > 0)
        )
        most = np.divide(CAUTION, owed, out=np.zeros_like(owed), where=owed > 0)
        return np.asarray(np.minimum(best, most))


@dataclass(frozen=True)
class Tangents:
    """The tangents of φ at c = Φ(z), an interval each: A + B·u ≤ φ(u) for every u in [0, 1]."""

    places: Array
    """The z, falling: nearly every sample is above the lowest knots."""
    turns: Array
    """Up to which ρ each A falls."""

    @classmethod
    def of(cls, n: int, alpha: float) -> Tangents:
        """Those of the normal distribution; at the low end, of the share that n samples cannot tell from 1."""
        unseen = min(0.4, np.log(1 / alpha) / n)
        z = np.minimum(np.concatenate([[np.inf], -_MIDDLES]), ndtri(1 - unseen))
        return cls(z, z + np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi) / ndtr(z))

    def __call__(self, rho: Array) -> tuple[Array, Array]:
        """A and B, a row for each ρ."""
        z, sizes = self.places, rho[:, None]
        until = np.minimum(sizes, self.turns)
        lows = ndtr(z - until) - ndtr(z) * np.exp(until * z - until**2 / 2)
        return lows, np.exp(sizes * z - sizes**2 / 2)


def knots_of(mean: Array, spread: Array, bound: float) -> Array:
    """−F, and the levels around the mean; a row for each pair, none beyond what a projection can be.

    Each is said to be a little lower than where samples are shared out, by more than rounding.
    """
    levels = np.clip(mean[:, None] + spread[:, None] * GRID - _NUDGE * bound, -bound, bound)
    return np.concatenate([np.full((len(levels), 1), -bound), levels], axis=1)


def _logs(factors: Array, shared: Array) -> Array:
    """Σ shared · ln(factor), minus infinity where a factor that counts is 0 or less."""
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.where(shared > 0, np.log(np.maximum(factors, 0.0)), 0.0)
    return np.asarray((shared * logs).sum(1))


def _chunks(count: int) -> list[slice]:
    return [slice(start, start + _ROWS) for start in range(0, count, _ROWS)]
