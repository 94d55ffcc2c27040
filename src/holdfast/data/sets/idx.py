"""The idx files of MNIST and of the sets made to replace it, plain or gzipped."""

from __future__ import annotations

import gzip
import io
import math
import struct
import zlib

import numpy as np
from numpy.typing import NDArray

from holdfast.data.listing import ArrayListing, array_ids, test_part
from holdfast.data.source import Source
from holdfast.errors import DataError

DIGITS = tuple("0123456789")
FASHION = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)

_UBYTE = 0x08
_MOST_BYTES = 2**30


def read_digits(source: Source) -> ArrayListing:
    """MNIST."""
    return _read(source, DIGITS)


def read_fashion(source: Source) -> ArrayListing:
    """Fashion-MNIST, whole or in part."""
    return _read(source, FASHION)


def parse_idx(content: bytes, name: str) -> NDArray[np.uint8]:
    """The array in an idx file, which is gunzipped first if it is gzipped. Only bytes are supported."""
    try:
        stream = (
            gzip.GzipFile(fileobj=io.BytesIO(content)) if content[:2] == b"\x1f\x8b" else io.BytesIO(content)
        )
        zeros, kind, axes = struct.unpack(">HBB", stream.read(4))
        if zeros != 0 or kind != _UBYTE or not 1 <= axes <= 4:
            raise DataError(f"{name} is not an idx file of bytes; get it again")
        shape = struct.unpack(f">{axes}I", stream.read(4 * axes))
        size = math.prod(shape)
        if size > _MOST_BYTES:
            raise DataError(f"{name} claims to hold {size} bytes, which no known set does; get it again")
        # One byte more than promised is asked for: a longer file is noticed, and a bomb is not unpacked.
        data = stream.read(size + 1)
    except (struct.error, EOFError, OSError, zlib.error) as cause:
        raise DataError(f"{name} is cut short or damaged; get it again") from cause
    if len(data) != size:
        found = "more" if len(data) > size else f"only {len(data)}"
        raise DataError(f"{name} promises {size} bytes and holds {found}; get it again")
    return np.frombuffer(data, dtype=np.uint8).reshape(shape)


def _read(source: Source, classes: tuple[str, ...]) -> ArrayListing:
    train_images, train_labels = _part(source, "train", len(classes))
    test_images, test_labels = _part(source, "t10k", len(classes))
    if train_images.shape[1:] != test_images.shape[1:]:
        found = f"{train_images.shape[1:]} and {test_images.shape[1:]}"
        raise DataError(
            f"training and test images in {source.path} differ in size: {found}; get the set again"
        )
    counts = (len(train_images), len(test_images))
    return ArrayListing(
        ids=array_ids(*counts),
        labels=np.concatenate([train_labels, test_labels]).astype(np.int64),
        classes=classes,
        official={"closed": test_part(*counts)},
        pixels=np.concatenate([train_images, test_images])[:, None],
    )


def _part(source: Source, part: str, classes: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    images = _array(source, f"{part}-images", 3)
    labels = _array(source, f"{part}-labels", 1)
    if len(images) != len(labels):
        found = f"{len(images)} images and {len(labels)} labels"
        raise DataError(f"{source.path} holds {found} in its {part} part; get the set again")
    if len(labels) and labels.max() >= classes:
        raise DataError(f"{source.path} holds label {labels.max()}, but there are {classes} classes")
    return images, labels


def _array(source: Source, stem: str, axes: int) -> NDArray[np.uint8]:
    """The file may be plain or gzipped, its name dashed or dotted, and lie in a folder of its own."""
    names = [f"{stem}{mark}idx{axes}-ubyte{packed}" for mark in "-." for packed in ("", ".gz")]
    for name in names:
        root = source.root_of(name)
        if root is None:
            continue
        array = parse_idx(_content(source, root + name), f"{source.path}/{root}{name}")
        if array.ndim != axes:
            raise DataError(f"{root}{name} in {source.path} has {array.ndim} axes, not {axes}; get it again")
        return array
    raise DataError(f"there is no {names[0]} (or .gz) in {source.path}; the set needs its four idx files")


def _content(source: Source, name: str) -> bytes:
    try:
        return source.read(name)
    except OSError as cause:
        raise DataError(f"could not read {name} in {source.path}: {cause.strerror}") from cause
