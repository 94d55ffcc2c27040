"""Embeddings of an evaluation, kept beside its rows until they are done."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from holdfast.data import ImageSet
from holdfast.evaluate.spread import HERE, Spread, compute
from holdfast.files import storage_error
from holdfast.models import AnyEmbedder
from holdfast.models.smoothed import at_once
from holdfast.progress import bar
from holdfast.rows import pending

CHUNK = 512


T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class _Embedding:
    embedder: AnyEmbedder
    images: ImageSet

    def __call__(self, what: None, span: range) -> Tensor:
        return self.embedder.embed(self.images.take(np.arange(span.start, span.stop)))


def embed_resumably(embedder: AnyEmbedder, images: ImageSet, path: Path, spread: Spread = HERE) -> Tensor:
    """The embeddings of `images`, appended to `path` chunk by chunk; chunks already there are kept."""
    n, dim, size = len(images), embedder.dim, at_once(embedder, CHUNK)
    there = path.stat().st_size // (4 * dim) if path.exists() else 0
    done = n if there == n else min(there, n) // size * size
    try:
        with open(path, "ab") as handle, bar("embedding", n, done) as advance:
            handle.truncate(4 * dim * done)

            def keep(vectors: Tensor) -> None:
                handle.write(vectors.numpy().astype("<f4").tobytes())
                handle.flush()
                os.fsync(handle.fileno())

            blocks = list(pending([(None, n, size)], done))
            compute(
                spread,
                _Embedding(embedder, images),
                blocks,
                keep,
                lambda number, vectors: advance(len(vectors)),
            )
    except OSError as cause:
        raise storage_error(path, cause) from cause
    return torch.from_numpy(np.fromfile(path, dtype="<f4").reshape(n, dim))
