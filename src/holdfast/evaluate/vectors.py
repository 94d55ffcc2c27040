"""Embeddings of an evaluation, kept beside its rows until they are done, and as features for metric learning.

Also which blocks of rows are not done yet.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from holdfast.data import Dataset, ImageSet
from holdfast.errors import DataError
from holdfast.evaluate.spread import HERE, Spread, compute
from holdfast.files import atomic_path, refuse_other, storage_error
from holdfast.models import AnyEmbedder
from holdfast.models.smoothed import at_once
from holdfast.progress import bar

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


def pending(parts: Iterable[tuple[T, int, int]], done: int) -> Iterator[tuple[T, range]]:
    """The blocks of rows that are not done yet, for parts of (what, how many rows, rows in a block).

    What is in a block depends on its place alone, so that a resumed run makes the same rows.
    """
    start = 0
    for what, rows, size in parts:
        for first in range(0, rows, size):
            block = range(first, min(first + size, rows))
            if start >= done:
                yield what, block
            start += len(block)


@dataclass(frozen=True)
class Exported:
    """How many vectors were written to learn from and to test on (0: the file is to be divided)."""

    train: int
    test: int


def export_features(embedder: AnyEmbedder, dataset: Dataset, out: Path) -> Exported:
    """Write the vectors of a data set's images as features for metric learning, with the embedder's fingerprint.

    X_train, y_train, X_test, y_test; where the test part has other classes, which no neighbour could name, X and y
    of the training part alone.
    """
    refuse_other(out, b"PK", "file of features")
    parts = {"train": dataset.train, "test": dataset.test}
    if dataset.train.labels is None or dataset.test.labels is None:
        raise DataError(f"{dataset.name} has no labels, so no metric can be learned from it")
    if not len(dataset.train):
        raise DataError(f"{dataset.name} has no training images to learn a metric from")
    names = {name: np.asarray(part.classes)[part.labels] for name, part in parts.items()}
    shared = bool(np.isin(names["test"], names["train"]).any())
    arrays: dict[str, NDArray[Any]] = {"embedder": np.array(embedder.fingerprint())}
    for name in ("train", "test") if shared else ("train",):
        suffix = f"_{name}" if shared else ""
        arrays |= {f"X{suffix}": _embedded(embedder, parts[name]), f"y{suffix}": names[name]}
    with atomic_path(out) as temporary, open(temporary, "wb") as handle:
        np.savez_compressed(handle, **arrays)  # type: ignore[arg-type]
    return Exported(len(dataset.train), len(dataset.test) if shared else 0)


def _embedded(embedder: AnyEmbedder, images: ImageSet) -> NDArray[np.float32]:
    size = at_once(embedder, CHUNK)
    found = []
    with bar("embedding", len(images)) as advance:
        for first in range(0, len(images), size):
            chunk = np.arange(first, min(first + size, len(images)))
            found.append(embedder.embed(images.take(chunk)).numpy())
            advance(len(chunk))
    return np.concatenate(found)
