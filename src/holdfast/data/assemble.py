"""From a listing to a Dataset: decode, leave out what cannot be read, split."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from holdfast.data.decoding import bring_arrays, decode_files
from holdfast.data.imageset import Dataset, ImageSet, Skipped
from holdfast.data.listing import ArrayListing, FileListing, Listing
from holdfast.data.source import Source
from holdfast.data.splits import SPLITS, Split
from holdfast.errors import DataError, unknown_name
from holdfast.spec import ImageSpec

Reader = Callable[[Source], FileListing | ArrayListing]
"""Reads what a source says about its images."""


def image_set(
    name: str, source: Source, listing: FileListing | ArrayListing, spec: ImageSpec
) -> tuple[ImageSet, NDArray[np.int64], tuple[Skipped, ...]]:
    """All readable images of `listing`; their positions in it; and those that were skipped.

    Raises DataError only when nothing at all could be read.
    """
    if not listing.ids:
        raise DataError(f"there are no images in {source.path}; name a folder or tar of images")
    if isinstance(listing, FileListing):
        pixels, problems = decode_files(source, listing, spec, f"reading {name}")
    else:
        pixels, problems = bring_arrays(source, listing, spec), {}
    rows = np.array([row for row in range(len(listing.ids)) if row not in problems], dtype=np.int64)
    unread = tuple(Skipped(listing.ids[row], reason) for row, reason in sorted(problems.items()))
    if not len(rows):
        first = f"{unread[0].id}: {unread[0].reason}"
        raise DataError(f"none of the {len(unread)} images in {source.path} could be read (first: {first})")
    images = ImageSet(
        name=name,
        ids=tuple(listing.ids[row] for row in rows.tolist()),
        labels=None if listing.labels is None else listing.labels[rows],
        classes=listing.classes,
        spec=spec,
        pixels=pixels,
        rows=rows,
        roles=listing.roles.take(rows) if isinstance(listing, FileListing) and listing.roles else None,
    )
    return images, rows, (*listing.skipped, *unread)


def assemble(
    name: str, source: Source, listing: FileListing | ArrayListing, spec: ImageSpec, split: Split
) -> Dataset:
    """The data set of `listing` at `spec`, split. The split is made before unreadable images are dropped."""
    tests = _tests(name, listing, split)
    images, rows, skipped = image_set(name, source, listing, spec)
    in_test = tests[rows]
    return Dataset(
        name=name,
        train=images.take(np.flatnonzero(~in_test)),
        test=images.take(np.flatnonzero(in_test)),
        split=split,
        skipped=skipped,
        read=len(images),
    )


def _tests(name: str, listing: Listing, split: Split) -> NDArray[np.bool_]:
    if split not in SPLITS:
        raise DataError(unknown_name("split", split, SPLITS))
    return listing.tests(split, name)
