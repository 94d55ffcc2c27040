"""Queries in one folder and candidates in another, as one set of images in which each has its role."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from holdfast.data.assemble import image_set
from holdfast.data.imageset import ImageSet, Roles, Skipped
from holdfast.data.labels import Labels, Table, is_table, read_table
from holdfast.data.listing import FileListing
from holdfast.data.sets import folder
from holdfast.data.source import Source, open_source
from holdfast.errors import DataError
from holdfast.spec import ImageSpec

QUERY, GALLERY = "queries/", "gallery/"
"""What stands before the ids, to tell the two apart."""


def load_pair(
    queries: str | Path, gallery: str | Path, *, spec: ImageSpec, labels: Labels = "deepest"
) -> tuple[ImageSet, tuple[Skipped, ...]]:
    """The images of two folders, tars or buckets; each of the first is asked about among those of the second.

    Labels are the names of class folders on both sides, or in one table, which names images of both.
    """
    table = read_table(labels) if is_table(labels) else None
    sides: list[ImageSet] = []
    skipped: list[Skipped] = []
    seen: list[str] = []
    for place, prefix in ((queries, QUERY), (gallery, GALLERY)):
        with open_source(place) as source:
            listing = folder.read_all(source, labels) if table is None else _listing(table, source, seen)
            if listing.labels is None:
                raise DataError(
                    f"{place} has no labels; put its images into one folder per class, or give a table of labels"
                )
            images, _, lost = image_set(Path(place).stem, source, listing, spec)
        ids = tuple(prefix + id for id in images.ids)
        sides.append(replace(images, ids=ids))
        skipped += [Skipped(prefix + entry.id, entry.reason) for entry in lost]
    if table is not None:
        table.check_whole([row for row in table.rows if row.path in set(seen)], f"{queries} or {gallery}")
    return _joined(*sides), tuple(skipped)


def _listing(table: Table, source: Source, seen: list[str]) -> FileListing:
    found = table.found_in(source)
    if not found:
        raise DataError(f"{table.path} names no image of {source.path}; paths in it are below that folder")
    seen += [row.path for row in found.values()]
    names = folder.image_names(source)
    return table.listing(found, folder.readable, [name for name in names if name not in found])


def _joined(asked: ImageSet, found: ImageSet) -> ImageSet:
    classes = tuple(sorted({*asked.classes, *found.classes}))
    number = {name: place for place, name in enumerate(classes)}

    def labels(side: ImageSet) -> NDArray[np.int64]:
        own = side.require_labels("evaluation")
        return np.array([number[name] for name in side.classes], dtype=np.int64)[own]

    count = len(asked)
    query = np.arange(count + len(found)) < count
    groups = [np.full(len(side), -1) if side.roles is None else side.roles.group for side in (asked, found)]
    return ImageSet(
        name=f"{asked.name}-in-{found.name}",
        ids=(*asked.ids, *found.ids),
        labels=np.concatenate([labels(asked), labels(found)]),
        classes=classes,
        spec=asked.spec,
        pixels=np.concatenate([side.pixels[side.rows] for side in (asked, found)]),
        rows=np.arange(count + len(found)),
        roles=Roles(query, ~query, np.concatenate(groups).astype(np.int64)),
    )
