"""Pictures that are nearly the same: copies, other sizes, stronger compression. A query with one is too easy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from holdfast.data.fit import to_channels, to_image
from holdfast.data.imageset import ImageSet, Roles

_SIDE = 16
_ALIKE = 0.998
"""Correlation of two small grey pictures; copies in JPEG have more, other photographs of a thing less."""
_BLOCK = 512


def near_duplicates(images: ImageSet) -> NDArray[np.int64]:
    """For each image the first one that it is a copy of, or itself."""
    small = _small(images)
    first = np.arange(len(images))
    for start in range(0, len(images), _BLOCK):
        block = small[start : start + _BLOCK]
        alike = block @ small[: start + len(block)].T >= _ALIKE
        alike[np.arange(len(block)), start + np.arange(len(block))] = True
        first[start : start + len(block)] = alike.argmax(1)
    return first


def without_near_duplicates(images: ImageSet) -> ImageSet:
    """The images without copies: of equal ones the first stays; a candidate that copies a query cannot be found."""
    first = near_duplicates(images)
    copied = first != np.arange(len(images))
    if images.roles is None:
        return images.take(np.flatnonzero(~copied))
    roles = images.roles
    asked = np.bincount(first, weights=roles.query, minlength=len(images))[first] - roles.query
    # A copy of a query may be asked about as well: what makes a query easy is that its copy can be found.
    return replace(images, roles=Roles(roles.query, roles.gallery & (asked < 1), roles.group))


def count_near_duplicates(images: ImageSet) -> int:
    """How many images `without_near_duplicates` leaves out."""
    left = without_near_duplicates(images)
    if images.roles is None or left.roles is None:
        return len(images) - len(left)
    return int((images.roles.gallery & ~left.roles.gallery).sum())


def _small(images: ImageSet) -> NDArray[np.float32]:
    """Small grey pictures of mean 0 and length 1; one of a single colour is none of them, and like no other."""
    found = np.empty((len(images), _SIDE * _SIDE), dtype=np.float32)
    for index in range(len(images)):
        grey = to_image(to_channels(images.image(index)[None].copy(), 1)[0])
        found[index] = np.asarray(grey.resize((_SIDE, _SIDE), Image.Resampling.BOX), dtype=np.float32).ravel()
    found -= found.mean(1, keepdims=True)
    lengths = np.linalg.norm(found, axis=1, keepdims=True)
    found[lengths[:, 0] <= 1] = 0
    found /= np.maximum(lengths, 1)
    return found
