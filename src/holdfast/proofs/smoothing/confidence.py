"""Confidence bounds of what samples estimate: each fails with probability at most α."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv

Array = NDArray[np.float64]
Counts = NDArray[np.int64]


def share_below(counts: Counts, n: int, alpha: float) -> Array:
    """Clopper–Pearson: p ≥ Beta⁻¹(α; k, n − k + 1) for k of n, with probability at least 1 − α."""
    k = np.asarray(counts, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        low = betaincinv(np.maximum(k, 1.0), n - k + 1, alpha)
    return np.where(k > 0, low, 0.0)


def mean_below(mean: Array, n: int, alpha: float, bound: float) -> Array:
    """Hoeffding: E X ≥ X̄ − F√(2 ln(1/α)/n) for X in [−F, F], with probability at least 1 − α."""
    return np.asarray(mean - bound * math.sqrt(2 * math.log(1 / alpha) / n))


def ball(n: int, alpha: float, bound: float) -> float:
    """‖ĝ − g‖ ≤ (F/√n)(1 + √(2 ln(1/α))) with probability at least 1 − α: every direction at once."""
    return bound / math.sqrt(n) * (1 + math.sqrt(2 * math.log(1 / alpha)))


def printed_slack(n: int, alpha: float, dim: int, bound: float) -> float:
    """4√(8F² ln((D + 1)/(α/4))/(3n)): what Lemma 3.8 of RetrievalGuard takes off the margin.

    As printed. Its nearest vectors are chosen by the samples that bound them, which needs a union that
    the lemma does not take; with a frozen gallery and vectors chosen elsewhere, four such balls are more
    than enough.
    """
    return 4 * math.sqrt(8 * bound**2 * math.log((dim + 1) / (alpha / 4)) / (3 * n))
