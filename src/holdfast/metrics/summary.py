"""Means over queries: each number that a table shows, computed from the rows' columns alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.metrics.chance import chance_hit_rate
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
    chance: dict[int, float | None]
    """The hit rate of a random order; None for rows of before, which do not count the candidates."""
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


DRAWS, LEVEL = 1000, 0.95
"""Of every bootstrap interval."""


def resamples(count: int) -> Iterator[NDArray[np.int64]]:
    """The bootstrap's draws of `count` queries with replacement, the same for the same count."""
    generator = np.random.default_rng(0)
    return (generator.integers(0, count, count) for _ in range(DRAWS))


def percentiles(values: Sequence[float] | Column) -> tuple[float, float]:
    """The middle 95 % of what the resamples gave."""
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(values, [tail, 1 - tail])
    return (float(low), float(high))


def bootstrap(values: Column) -> tuple[float, float]:
    """A percentile confidence interval of the mean, by resampling queries."""
    values = np.asarray(values, dtype=np.float64)
    if len(values) == 0:
        return (float("nan"), float("nan"))
    return percentiles([float(values[at].mean()) for at in resamples(len(values))])


def summarise(columns: Mapping[str, Column], ks: Sequence[int]) -> Summary:
    """The summary of an evaluation's rows."""
    relevant = columns["relevant"]

    def mean(name: str) -> float | None:
        values = columns[name][relevant > 0]
        return float(values.mean()) if len(values) else None

    clusters, searched = columns.get("cluster"), columns.get("candidates")
    return Summary(
        queries=len(relevant),
        unanswerable=int((relevant == 0).sum()),
        hit_rate={k: hit_rate(columns["first_rank"], k) for k in ks},
        chance={k: None if searched is None else chance_hit_rate(relevant, searched, k) for k in ks},
        recall={k: true_recall(columns[f"found_{k}"], relevant) for k in ks},
        map=mean("average_precision"),
        map_at_r=mean("average_precision_at_r"),
        r_precision=mean("r_precision"),
        nmi=nmi(columns["label"], clusters) if clusters is not None else None,
    )
