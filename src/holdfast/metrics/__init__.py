"""Numbers from embeddings and rows: what a search finds, and how much of it is right."""

from holdfast.metrics.chance import chance_hit_rate, chance_of_draw
from holdfast.metrics.clusters import cluster, nmi
from holdfast.metrics.order import chance_overlap, class_overlap
from holdfast.metrics.ranking import Distances, Outcomes, rank
from holdfast.metrics.robustness import unit_shift
from holdfast.metrics.summary import (
    Summary,
    bootstrap,
    hit_rate,
    percentiles,
    resamples,
    summarise,
    true_recall,
)

__all__ = [
    "Distances",
    "Outcomes",
    "Summary",
    "bootstrap",
    "chance_hit_rate",
    "chance_of_draw",
    "chance_overlap",
    "class_overlap",
    "cluster",
    "hit_rate",
    "nmi",
    "percentiles",
    "rank",
    "resamples",
    "summarise",
    "true_recall",
    "unit_shift",
]
