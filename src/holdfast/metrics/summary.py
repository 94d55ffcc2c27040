"""Means over queries: each number that a table shows, computed from the rows' columns alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.metrics.clusters import nmi

Column = NDArray[Any]


@dataclass(frozen=True)
class Summary:
    """The numbers of one evaluation. A mean over no query at all is None."""

    queries: int
    unanswerable: int
    """Queries whose class has no candidate; they are in no mean."""
    hit_rate: dict[int, float | None]
    """Share of queries with a same-class candidate among the nearest K: the papers' Recall@K."""
    recall: dict[int, float | None]
    """Share of a query's same-class candidates that are among the nearest K: true recall."""
    map: float | None
    map_at_r: float | None
    r_precision: float | None
    nmi: float | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def hit_rate(first_rank: Column, k: int) -> float | None:
    """Share of the answerable queries whose nearest same-class candidate has rank ≤ k."""
    answerable = first_rank[first_rank > 0]
    return float((answerable <= k).mean()) if len(answerable) else None


def true_recall(found: Column, relevant: Column) -> float | None:
    """Mean over the answerable queries of found / relevant."""
    some = relevant > 0
    return float((found[some] / relevant[some]).mean()) if some.any() else None


def bootstrap(values: Column, seed: int = 0, draws: int = 1000, level: float = 0.95) -> tuple[float, float]:
    """A percentile confidence interval of the mean, by resampling queries."""
    values = np.asarray(values, dtype=np.float64)
    if len(values) == 0:
        return (float("nan"), float("nan"))
    generator = np.random.default_rng(seed)
    means = [float(values[generator.integers(0, len(values), len(values))].mean()) for _ in range(draws)]
    tail = (1 - level) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return (float(low), float(high))


def summarise(columns: Mapping[str, Column], ks: Sequence[int]) -> Summary:
    """The summary of an evaluation's rows."""
    relevant = columns["relevant"]

    def mean(name: str) -> float | None:
        values = columns[name][relevant > 0]
        return float(values.mean()) if len(values) else None

    clusters = columns.get("cluster")
    return Summary(
        queries=len(relevant),
        unanswerable=int((relevant == 0).sum()),
        hit_rate={k: hit_rate(columns["first_rank"], k) for k in ks},
        recall={k: true_recall(columns[f"found_{k}"], relevant) for k in ks},
        map=mean("average_precision"),
        map_at_r=mean("average_precision_at_r"),
        r_precision=mean("r_precision"),
        nmi=nmi(columns["label"], clusters) if clusters is not None else None,
    )
