"""Which images train and which test, and which are asked and which can be found."""

from __future__ import annotations

from collections.abc import Sized
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import DataError

Split = Literal["closed", "open", "given"]
SPLITS: tuple[Split, ...] = ("closed", "open", "given")

TEST_SHARE = 0.2
SPLIT_SEED = 0


def closed_split(
    labels: NDArray[np.int64], share: float = TEST_SHARE, seed: int = SPLIT_SEED
) -> NDArray[np.bool_]:
    """Which images test, when a split is by image: `share` of each class, drawn by `seed`."""
    test = np.zeros(len(labels), dtype=np.bool_)
    test[hold_out(labels, share, seed)[1]] = True
    return test


def open_split(labels: NDArray[np.int64], classes: int) -> NDArray[np.bool_]:
    """Which images test, when a split is by class: those of the second half of the classes.

    No class is on both sides. Of an odd number of classes the extra one trains.
    """
    return labels >= (classes + 1) // 2


def hold_out(
    labels: NDArray[np.int64], share: float, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Indices to keep and indices held out: disjoint, both sorted, together all.

    Each class gives its rounded `share`, but at least one image when it has two or more, and keeps
    at least one.
    """
    if not 0.0 < share < 1.0:
        raise DataError(f"the share to hold out lies between 0 and 1, not {share}; give one such as 0.1")
    random = np.random.default_rng(seed)
    held = np.zeros(len(labels), dtype=np.bool_)
    _, counts = np.unique(labels, return_counts=True)
    for members in np.split(np.argsort(labels, kind="stable"), np.cumsum(counts)[:-1]):
        count = min(max(1, round(share * len(members))), len(members) - 1)
        held[random.permutation(members)[:count]] = True
    return np.flatnonzero(~held), np.flatnonzero(held)


def draw(
    images: Sized, queries: int, candidates: int | None, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Indices of `queries` queries and `candidates` candidates (`None`: all the rest), never overlapping.

    The same seed and number of images give the same draw.
    """
    total = len(images)
    wanted = queries + (1 if candidates is None else candidates)
    if queries < 1 or (candidates is not None and candidates < 1):
        raise DataError(f"a draw needs at least 1 query and 1 candidate, not {queries} and {candidates}")
    if wanted > total:
        asked = f"{queries} queries and {'the rest as' if candidates is None else candidates} candidates"
        raise DataError(f"{asked} need {wanted} images, but there are {total}; ask for fewer")
    order = np.random.default_rng(seed).permutation(total)
    end = total if candidates is None else wanted
    return order[:queries], order[queries:end]
