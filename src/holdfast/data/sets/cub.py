"""CUB-200-2011 in its official layout."""

from __future__ import annotations

import numpy as np

from holdfast.data.listing import FileListing, without_missing
from holdfast.data.source import Source
from holdfast.errors import DataError


def read(source: Source) -> FileListing:
    """Images and classes in the order of the official files; the official split by image is `closed`."""
    tables = ("images.txt", "image_class_labels.txt", "train_test_split.txt", "classes.txt")
    root = source.root_of(*tables)
    if root is None:
        raise DataError(f"{source.path} is not CUB-200-2011: it should hold images/ and {', '.join(tables)}")
    images, labels, trains, classes = (_table(source, root + name) for name in tables)
    positions = {number: position for position, number in enumerate(classes)}
    try:
        found = [positions[labels[number]] for number in images]
        tests = [trains[number] == "0" for number in images]
    except KeyError as cause:
        raise DataError(
            f"the tables of {source.path} disagree about number {cause}; get the set again"
        ) from cause
    ids = tuple(f"images/{path}" for path in images.values())
    listing = FileListing(
        ids=ids,
        names=tuple(root + name for name in ids),
        labels=np.array(found, dtype=np.int64),
        classes=tuple(classes.values()),
        official={"closed": np.array(tests, dtype=np.bool_)},
    )
    return without_missing(listing, source.files)


def _table(source: Source, name: str) -> dict[str, str]:
    """Lines of a number and a value; values may hold spaces."""
    pairs = (line.split(maxsplit=1) for line in source.text(name).splitlines() if line.strip())
    try:
        return {number: value.strip() for number, value in pairs}
    except ValueError as cause:
        raise DataError(f"{name} in {source.path} has a line without a number and a value") from cause
