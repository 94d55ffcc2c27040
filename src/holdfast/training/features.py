"""Features of a frozen network, kept so that a head on top of it trains in seconds.

Each image goes through the network a few times, augmented and with noise as in any other training; the head then
draws one of these copies for every image of a step. It begins with their principal components.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from holdfast.data import ImageSet
from holdfast.files import atomic_write, storage_error
from holdfast.models import Embedder, to_unit
from holdfast.models.parts import before_head
from holdfast.progress import bar
from holdfast.randomness import derive
from holdfast.training.augment import prepared
from holdfast.training.config import TrainSection

FEATURES, MADE_OF = "features.part", "features.key"
CHUNK = 64
ENOUGH = 8192
"""Copies whose principal components a head begins with, at most."""


class Features:
    """What the loop draws from instead of images: for each, the features of one of its copies."""

    def __init__(self, rows: np.memmap[Any, np.dtype[np.float32]]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return int(self._rows.shape[1])

    def batch(self, indices: Any) -> Tensor:
        """A copy of each, at random from torch's default generator."""
        copy = torch.randint(len(self._rows), (len(indices),)).numpy()
        return torch.from_numpy(self._rows[copy, np.asarray(indices)])

    def some(self, most: int) -> Tensor:
        """The features of at most so many copies, evenly from all."""
        every = self._rows.reshape(-1, self._rows.shape[2])
        return torch.from_numpy(every[:: -(-len(every) // most)].copy())


def cached_features(
    embedder: Embedder, images: ImageSet, settings: TrainSection, seed: int, folder: Path
) -> Features:
    """The features of `settings.copies` copies of all images, in a file that a stopped run goes on with."""
    path, n, copies = folder / FEATURES, len(images), settings.copies
    width = _width(embedder)
    made_of = folder / MADE_OF
    # What was kept of other images, or another network, is of no use.
    key = f"{images.digest()} {embedder.fingerprint()} {copies}"
    if not made_of.exists() or made_of.read_text() != key:
        path.unlink(missing_ok=True)
        atomic_write(made_of, key)
    blocks = [(copy, first) for copy in range(copies) for first in range(0, n, CHUNK)]
    there = path.stat().st_size if path.exists() else 0
    sizes = np.cumsum([0, *(4 * width * min(CHUNK, n - first) for _, first in blocks)])
    done = int(np.searchsorted(sizes, there, side="right")) - 1
    try:
        with (
            open(path, "ab") as handle,
            before_head(embedder) as features,
            torch.random.fork_rng(devices=[]),
            bar("features", len(blocks), done) as advance,
        ):
            handle.truncate(int(sizes[done]))
            for copy, first in blocks[done:]:
                torch.manual_seed(derive(seed, "features", copy, first))
                drawn = prepared(
                    images.batch(np.arange(first, min(first + CHUNK, n))),
                    crop=settings.crop or 0,
                    flip=bool(settings.flip),
                    noise=settings.noise,
                )
                handle.write(features(drawn).numpy().astype("<f4").tobytes())
                handle.flush()
                os.fsync(handle.fileno())
                advance()
    except OSError as cause:
        raise storage_error(path, cause) from cause
    return Features(np.memmap(path, dtype="<f4", mode="c", shape=(copies, n, width)))


def begin_with_components(head: nn.Module, features: Features) -> None:
    """Let a linear head begin with the principal components of the features: it then ranks much as they do.

    From random weights a head forgets more of a pretrained network than it learns from a few classes. What
    exceeds the number of features keeps its random weights.
    """
    if not isinstance(head, nn.Linear):
        return
    seen = features.some(ENOUGH)
    count = min(head.out_features, *seen.shape)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        # It begins with random directions of its own.
        torch.manual_seed(0)
        directions = torch.pca_lowrank(seen, count, niter=4)[2].T
        head.weight[:count] = directions
        if head.bias is not None:
            head.bias[:count] = -(directions @ seen.mean(0))


def drop_features(folder: Path) -> None:
    """A finished run needs them no more."""
    for name in (FEATURES, MADE_OF):
        (folder / name).unlink(missing_ok=True)


def clean_features(embedder: Embedder, images: ImageSet) -> Tensor:
    """The features of images as they are: what watches the training of a head."""
    with before_head(embedder) as features:
        return torch.cat(
            [
                features(to_unit(images.batch(np.arange(first, min(first + CHUNK, len(images))))))
                for first in range(0, len(images), CHUNK)
            ]
        )


def _width(embedder: Embedder) -> int:
    with before_head(embedder) as features:
        return int(features(torch.zeros(1, *embedder.spec.shape)).shape[1])
