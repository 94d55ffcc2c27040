"""What an evaluation asks: which images are queries and candidates, and which Ks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from holdfast import data
from holdfast.data import ImageSet
from holdfast.errors import ConfigError, DataError

KS = (1, 10, 20, 40)
"""The Ks of Kakizaki et al.'s tables."""


def draw_or_all(
    images: ImageSet, queries: int | None, candidates: int | None, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Disjoint queries and candidates of that number (None: all the rest), those that are marked so, or everyone."""
    if queries is None and candidates is not None:
        raise ConfigError("a number of candidates needs a number of queries: give both")
    if queries is None and images.roles is not None:
        return images.roles.sides(images.name)
    if queries is None:
        if len(images) < 2:
            raise DataError(f"an evaluation needs at least two images; found {len(images)}")
        everyone = np.arange(len(images))
        return everyone, everyone
    return data.draw(images, queries, candidates, seed)


def ordered_ks(ks: Sequence[int], candidates: int) -> list[int]:
    """The Ks in order, each once; an error if there is none, or one that no ranking of that size has."""
    if not ks or min(ks) < 1 or max(ks) > candidates:
        wanted = ", ".join(map(str, ks)) or "none"
        raise ConfigError(f"K lies between 1 and the {candidates} candidates; given: {wanted}")
    return sorted(set(ks))
