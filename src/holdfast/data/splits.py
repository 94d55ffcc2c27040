"""Which images train and which test, and which are asked and which can be found."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence, Sized
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import DataError

Split = Literal["closed", "open", "given"]
SPLITS: tuple[Split, ...] = ("closed", "open", "given")

TEST_SHARE = 0.2
SPLIT_SEED = 0


def closed_split(
    ids: Sequence[str], labels: NDArray[np.int64], share: float = TEST_SHARE, seed: int = SPLIT_SEED
) -> NDArray[np.bool_]:
    """Which images test, when a split is by image: about `share` of each class.

    An image's own id decides, so that images which are added later move none of the others: what a
    model was trained on never turns into a test image. Of a class with two or more images at least
    one tests and one trains.
    """
    chance = np.array([_chance(seed, id) for id in ids], dtype=np.float64)
    test = chance < share
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        if len(members) > 1:
            order = members[np.argsort(chance[members], kind="stable")]
            test[order[0]], test[order[-1]] = True, False
    return test


def _chance(seed: int, id: str) -> float:
    digest = hashlib.blake2b(f"{seed}/{id}".encode(errors="surrogateescape"), digest_size=8).digest()
    return int.from_bytes(digest, "little") / 2.0**64


def open_split(labels: NDArray[np.int64], classes: int) -> NDArray[np.bool_]:
    """Which images test, when a split is by class: those of the second half of the classes.

    No class is on both sides. Of an odd number of classes the extra one trains.
    """
    return labels >= (classes + 1) // 2


def hold_out(
    labels: NDArray[np.int64], share: float, seed: int, least: int = 1
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Indices to keep and indices held out: disjoint, both sorted, together all.

    Each class gives its rounded `share`, but at least `least` images, and keeps as many; a class
    too small for that gives none.
    """
    if not 0.0 < share < 1.0:
        raise DataError(f"the share to hold out lies between 0 and 1, not {share}; give one such as 0.1")
    random = np.random.default_rng(seed)
    held = np.zeros(len(labels), dtype=np.bool_)
    _, counts = np.unique(labels, return_counts=True)
    for members in np.split(np.argsort(labels, kind="stable"), np.cumsum(counts)[:-1]):
        if len(members) < 2 * least:
            continue
        count = min(max(least, round(share * len(members))), len(members) - least)
        held[random.permutation(members)[:count]] = True
    return np.flatnonzero(~held), np.flatnonzero(held)


def hold_out_classes(
    labels: NDArray[np.int64], share: float, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The same for whole classes: the rounded `share` of them, but at least 2, and at least 2 are kept.

    Of fewer than 4 classes none is held out.
    """
    if not 0.0 < share < 1.0:
        raise DataError(f"the share to hold out lies between 0 and 1, not {share}; give one such as 0.1")
    classes = np.unique(labels)
    if len(classes) < 4:
        return np.arange(len(labels)), np.arange(0)
    count = min(max(2, round(share * len(classes))), len(classes) - 2)
    held = np.isin(labels, np.random.default_rng(seed).permutation(classes)[:count])
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
