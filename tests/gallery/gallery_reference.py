"""Slow and obvious: what a search must answer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from holdfast.gallery import EmbedderInfo, Hits

DIM = 5
EMBEDDER = EmbedderInfo("a" * 64, {"name": "small", "dim": DIM}, "runs/first")


def distance(query: NDArray[np.float32], vector: NDArray[np.float32]) -> float:
    return float(np.sqrt(np.square(vector.astype(np.float64) - query.astype(np.float64)).sum()))


def ranking(
    query: NDArray[np.float32], ids: Sequence[str], vectors: NDArray[np.float32]
) -> list[tuple[str, float, bool]]:
    """All candidates as (id, distance, tied), in order."""
    found = sorted((distance(query, vector), id) for id, vector in zip(ids, vectors, strict=True))
    values = [value for value, _ in found]
    return [(id, value, values.count(value) > 1) for value, id in found]


def told(hits: Hits) -> list[tuple[str, float, bool]]:
    return [(hit.id, hit.distance, hit.tied) for hit in hits.hits]


def random(count: int, seed: int = 0, dim: int = DIM) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((count, dim), dtype=np.float32)


def names(count: int) -> list[str]:
    return [f"image-{number:04d}" for number in range(count)]
