"""The gallery that the gallery benchmarks use: 100,000 random vectors of 128 numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from holdfast.gallery import EmbedderInfo, Gallery

COUNT = 100_000
DIM = 128
EMBEDDER = EmbedderInfo("0" * 64, {"name": "bench"})


def vectors(count: int, seed: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((count, DIM), dtype=np.float32)


def names() -> tuple[list[str], list[str], list[str]]:
    """Ids, labels and paths of the usual lengths."""
    ids = [f"image-{number:06d}" for number in range(COUNT)]
    return ids, [f"class-{number % 100}" for number in range(COUNT)], [f"images/{id}.jpg" for id in ids]


def filled(path: Path, base: NDArray[np.float32]) -> Gallery:
    """A new gallery with the rows of `base`, under the first names."""
    ids, labels, paths = names()
    gallery = Gallery.create(path, dim=DIM, embedder=EMBEDDER)
    gallery.add(ids[: len(base)], base, labels=labels[: len(base)], paths=paths[: len(base)])
    return gallery
