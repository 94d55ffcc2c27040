"""Embeddings of an evaluation, kept beside its rows until they are done: embedding is the slow part."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from holdfast.data import ImageSet
from holdfast.files import storage_error
from holdfast.models import AnyEmbedder
from holdfast.models.smoothed import at_once
from holdfast.progress import bar

CHUNK = 512


def embed_resumably(embedder: AnyEmbedder, images: ImageSet, path: Path) -> Tensor:
    """The embeddings of `images`, appended to `path` chunk by chunk; chunks already there are kept."""
    n, dim, size = len(images), embedder.dim, at_once(embedder, CHUNK)
    there = path.stat().st_size // (4 * dim) if path.exists() else 0
    done = n if there == n else min(there, n) // size * size
    try:
        with open(path, "ab") as handle, bar("embedding", n, done) as advance:
            handle.truncate(4 * dim * done)
            for first in range(done, n, size):
                chunk = np.arange(first, min(first + size, n))
                vectors = embedder.embed(images.take(chunk))
                handle.write(vectors.numpy().astype("<f4").tobytes())
                handle.flush()
                os.fsync(handle.fileno())
                advance(len(chunk))
    except OSError as cause:
        raise storage_error(path, cause) from cause
    return torch.from_numpy(np.fromfile(path, dtype="<f4").reshape(n, dim))
