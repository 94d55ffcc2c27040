"""Stanford Online Products in its official layout: Ebay_train.txt, Ebay_test.txt and folders of images."""

from __future__ import annotations

import numpy as np

from holdfast.data.listing import FileListing, without_missing
from holdfast.data.source import Source
from holdfast.errors import DataError

_TRAIN, _TEST = "Ebay_train.txt", "Ebay_test.txt"


def read(source: Source) -> FileListing:
    """Images in the order of the official files. Their split is by class, so it is `open`.

    It is not two equal halves (11,318 and 11,316 classes). A class is one product, named by its number.
    """
    root = source.root_of(_TRAIN, _TEST)
    if root is None:
        raise DataError(f"{source.path} is not Stanford Online Products: it should hold {_TRAIN} and {_TEST}")
    train, test = _table(source, root + _TRAIN), _table(source, root + _TEST)
    shared = {number for number, _ in train} & {number for number, _ in test}
    if shared:
        raise DataError(f"class {min(shared)} is in both tables of {source.path}; get the set again")
    rows = [*train, *test]
    classes = tuple(dict.fromkeys(number for number, _ in rows))
    positions = {number: position for position, number in enumerate(classes)}
    ids = tuple(path for _, path in rows)
    listing = FileListing(
        ids=ids,
        names=tuple(root + name for name in ids),
        labels=np.array([positions[number] for number, _ in rows], dtype=np.int64),
        classes=classes,
        official={"open": np.arange(len(rows)) >= len(train)},
    )
    return without_missing(listing, source.files)


def _table(source: Source, name: str) -> list[tuple[str, str]]:
    """The class and path of each image. The columns are image_id, class_id, super_class_id, path."""
    rows = [line.split() for line in source.text(name).splitlines()[1:] if line.strip()]
    if any(len(row) != 4 for row in rows):
        raise DataError(f"{name} in {source.path} has a line that is not of 4 columns; get the set again")
    return [(row[1], row[3]) for row in rows]
