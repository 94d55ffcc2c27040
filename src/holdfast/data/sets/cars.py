"""CARS-196 in its official layout: cars_annos.mat and car_ims/."""

from __future__ import annotations

import io

import numpy as np

from holdfast.data.listing import FileListing, without_missing
from holdfast.data.source import Source
from holdfast.errors import DataError

_TABLE = "cars_annos.mat"


def read(source: Source) -> FileListing:
    """Images and classes in the order of the annotation file; its split by image is `closed`."""
    # scipy.io takes long to import, and nothing else here needs it.
    from scipy.io import loadmat

    root = source.root_of(_TABLE)
    if root is None:
        raise DataError(f"{source.path} is not CARS-196: it should hold {_TABLE} and car_ims/")
    try:
        content = loadmat(io.BytesIO(source.read(root + _TABLE)), squeeze_me=True)
        table = np.atleast_1d(content["annotations"])
        ids = tuple(str(path) for path in table["relative_im_path"])
        labels = np.array([int(number) for number in table["class"]], dtype=np.int64) - 1
        tests = np.array([bool(flag) for flag in table["test"]], dtype=np.bool_)
        classes = tuple(str(name) for name in np.atleast_1d(content["class_names"]))
    except Exception as cause:
        # scipy raises nearly anything on a damaged file.
        raise DataError(f"could not read {_TABLE} in {source.path} ({cause}); get the set again") from cause
    if len(labels) and not 0 <= labels.min() <= labels.max() < len(classes):
        raise DataError(f"{_TABLE} in {source.path} numbers classes beyond its {len(classes)} names")
    listing = FileListing(
        ids=ids,
        names=tuple(root + name for name in ids),
        labels=labels,
        classes=classes,
        official={"closed": tests},
    )
    return without_missing(listing, source.files)
