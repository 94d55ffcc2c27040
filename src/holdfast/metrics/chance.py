"""Chance level: the hit rate of an order that knows nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

Column = NDArray[Any]


def chance_hit_rate(relevant: Column, candidates: Column | int, k: int) -> float | None:
    """The share of queries that a random order of the candidates gives a right answer among the first K, on average.

    `relevant` is each query's number of right candidates, `candidates` of how many in all; queries without a right
    one are left out. A query misses with probability C(N − r, K) / C(N, K), N candidates of which r are right.
    """
    right, every = np.broadcast_arrays(np.asarray(relevant, dtype=np.float64), candidates)
    right, every = right[right > 0], every[right > 0]
    if not len(right):
        return None
    wrong = every - right
    rest, left = np.maximum(wrong - k, 0), np.maximum(every - k, 0)
    log_miss = gammaln(wrong + 1) - gammaln(rest + 1) + gammaln(left + 1) - gammaln(every + 1)
    miss = np.where(wrong >= k, np.exp(log_miss), 0.0)
    return float(1 - miss.mean())


def chance_of_draw(labels: Column, candidates: int, k: int) -> float:
    """The same for a random draw, if classes are as frequent among the candidates as among the queries.

    `labels` are those of the queries.
    """
    _, where, counts = np.unique(labels, return_inverse=True, return_counts=True)
    return chance_hit_rate(candidates * (counts / max(1, len(labels)))[where], candidates, k) or 0.0
