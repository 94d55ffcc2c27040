"""What a data set's own files say about its images, before any is decoded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from holdfast.data.imageset import Roles, Skipped
from holdfast.data.splits import Split, closed_split, open_split
from holdfast.errors import DataError


@dataclass(frozen=True, eq=False, kw_only=True)
class Listing:
    """The images of a data set in its own order.

    `official` holds the splits the data set defines itself: for each, which images test.
    `skipped` are images that the set names and does not have.
    """

    ids: tuple[str, ...]
    labels: NDArray[np.int64] | None
    classes: tuple[str, ...]
    official: Mapping[Split, NDArray[np.bool_]] = field(default_factory=dict)
    skipped: tuple[Skipped, ...] = ()

    def tests(self, split: Split, name: str) -> NDArray[np.bool_]:
        """Which images test under `split`: as the data set says, else by our own rule."""
        if split in self.official:
            return self.official[split]
        if split == "given":
            raise DataError(f"{name} has no train and test folders of its own; use the closed or open split")
        if split == "closed":
            labels = np.zeros(len(self.ids), dtype=np.int64) if self.labels is None else self.labels
            return closed_split(self.ids, labels)
        if self.labels is None:
            raise DataError(f"the open split is by class, and {name} has no classes; use the closed split")
        if len(self.classes) < 2:
            raise DataError(
                f"the open split needs 2 classes, and {name} has {len(self.classes)}; use the closed split"
            )
        return open_split(self.labels, len(self.classes))


@dataclass(frozen=True, eq=False, kw_only=True)
class FileListing(Listing):
    """Images that are files of their own: `names` are their names in the source."""

    names: tuple[str, ...]
    roles: Roles | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class ArrayListing(Listing):
    """Images that came as one array, N×C×H×W."""

    pixels: NDArray[np.uint8]


def array_ids(train: int, test: int) -> tuple[str, ...]:
    """Ids for images that have no file names: "train/00000" and on, then "test/00000" and on."""
    return (
        *(f"train/{index:05d}" for index in range(train)),
        *(f"test/{index:05d}" for index in range(test)),
    )


def test_part(train: int, test: int) -> NDArray[np.bool_]:
    """Which images test, where the training images come first."""
    return np.arange(train + test) >= train


def without_missing(listing: FileListing, present: Mapping[str, object]) -> FileListing:
    """`listing` without the images that are not in `present`; those are named as missing."""
    kept = np.array([name in present for name in listing.names], dtype=np.bool_)
    if kept.all():
        return listing
    positions = np.flatnonzero(kept).tolist()
    gone = (Skipped(listing.ids[index], "missing") for index in np.flatnonzero(~kept).tolist())
    return FileListing(
        ids=tuple(listing.ids[index] for index in positions),
        names=tuple(listing.names[index] for index in positions),
        labels=None if listing.labels is None else listing.labels[kept],
        classes=listing.classes,
        official={split: tests[kept] for split, tests in listing.official.items()},
        skipped=(*listing.skipped, *gone),
    )
