"""Certified ℓ2 radii of a smoothed embedder g(x) = E h(x + z), z ~ N(0, σ²I), with ‖h‖ ≤ F.

For frozen vectors c⁺ and c⁻, "c⁺ is nearer to g than c⁻" is ⟨g, w⟩ > t with w = (c⁺ − c⁻)/‖c⁺ − c⁻‖ and
t = (‖c⁺‖² − ‖c⁻‖²)/(2‖c⁺ − c⁻‖): a question about one number, the mean of the projection X = ⟨h(x + z), w⟩,
which lies in [−F, F]. Each function but the last turns what is known of X at x into a radius r such that
⟨g(x + δ), w⟩ > t for every ‖δ‖₂ < r; `vote_radius` is about a share of noisy copies. All of them are exact
statements; confidence comes in with what they are given (`confidence.py`). A radius of 0 proves nothing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

Array = NDArray[np.float64]


def printed_radius(margin: Array, sigma: float, bound: float) -> Array:
    """2σΦ⁻¹(½ + d/(8F)) for the margin d = d(g, c⁻) − d(g, c⁺) (RetrievalGuard, Theorem 3.5); 0 where d ≤ 0.

    At a margin of 4F, which no vectors have, it is infinite.
    """
    share = np.clip(0.5 + np.asarray(margin) / (8 * bound), 0.5, 1.0)
    return np.asarray(2 * sigma * ndtri(share))


def half_space_radius(mean: Array, threshold: Array, sigma: float, bound: float) -> Array:
    """σ[Φ⁻¹((s + F)/2F) − Φ⁻¹((t + F)/2F)], s a lower bound of E X at x: Φ⁻¹ of a smoothed function in
    [0, 1] is 1/σ-Lipschitz. Never below the printed radius, and without its cap.

    Infinite where t < −F, which no projection reaches whatever the samples say; else 0 where s ≤ t.
    """
    high, low = (ndtri(np.clip((np.asarray(v) + bound) / (2 * bound), 0.0, 1.0)) for v in (mean, threshold))
    with np.errstate(invalid="ignore"):
        radius = np.where(np.asarray(mean) > np.asarray(threshold), sigma * (high - low), 0.0)
    radius = np.where(np.asarray(threshold) < -bound, np.inf, radius)
    return np.nan_to_num(np.maximum(radius, 0.0), nan=0.0, posinf=np.inf)


def vote_radius(share: Array, sigma: float, need: float = 0.5) -> Array:
    """σ[Φ⁻¹(p) − Φ⁻¹(need)], p a lower bound of the share of noisy copies that vote for it; 0 where p ≤ need.

    For the deployed rule "the majority of noisy copies says so" (Cohen et al. 2019), or where more than `need` of the
    true share must remain; what a search estimates from its own copies it must prove in turn.
    """
    share = np.asarray(share, dtype=np.float64)
    radius = np.where(share > need, sigma * (ndtri(np.clip(share, 0.0, 1.0)) - ndtri(need)), 0.0)
    return np.asarray(radius)
