"""CIFAR-10: the official binary and Python batches, and the PNG package."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from holdfast.data.images import decode
from holdfast.data.listing import ArrayListing, array_ids, test_part
from holdfast.data.sets.batch_pickle import MAX_BYTES, read_batch
from holdfast.data.source import Source
from holdfast.errors import DataError, ImageError

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

Part = tuple[NDArray[np.uint8], NDArray[np.uint8]]
"""Images N×3×32×32, and their labels."""

_TRAIN = tuple(f"data_batch_{number}" for number in range(1, 6))
_TEST = ("test_batch",)
_RECORD = 1 + 3 * 32 * 32


def read(source: Source) -> ArrayListing:
    """The set in whichever of the three layouts is there."""
    layouts: dict[str, Callable[[Source, str, tuple[str, ...]], Part]] = {
        ".bin": _binary,
        "": _python,
        ".png": _png,
    }
    for ending, reader in layouts.items():
        root = source.root_of(*(name + ending for name in (*_TRAIN, *_TEST)))
        if root is not None:
            train, test = reader(source, root, _TRAIN), reader(source, root, _TEST)
            break
    else:
        raise DataError(
            f"there are no CIFAR-10 batches in {source.path}; it should hold data_batch_1 to 5 and "
            "test_batch (.bin, Python or .png)"
        )
    counts = (len(train[0]), len(test[0]))
    labels = np.concatenate([train[1], test[1]]).astype(np.int64)
    if len(labels) and labels.max() >= len(CLASSES):
        raise DataError(
            f"{source.path} holds label {labels.max()}, but there are 10 classes; get the set again"
        )
    return ArrayListing(
        ids=array_ids(*counts),
        labels=labels,
        classes=CLASSES,
        official={"closed": test_part(*counts)},
        pixels=np.concatenate([train[0], test[0]]),
    )


def _binary(source: Source, root: str, names: tuple[str, ...]) -> Part:
    records = []
    for name in names:
        content = _content(source, f"{root}{name}.bin")
        if len(content) % _RECORD:
            raise DataError(f"{root}{name}.bin in {source.path} is cut short; get the set again")
        records.append(np.frombuffer(content, dtype=np.uint8).reshape(-1, _RECORD))
    table = np.concatenate(records)
    return table[:, 1:].reshape(-1, 3, 32, 32), table[:, 0]


def _python(source: Source, root: str, names: tuple[str, ...]) -> Part:
    for name in names:
        if source.files[root + name].size > MAX_BYTES:
            raise DataError(
                f"{root}{name} in {source.path} is larger than any CIFAR-10 batch; get the set again"
            )
    parts = [read_batch(_content(source, root + name), f"{source.path}/{root}{name}") for name in names]
    images = np.concatenate([images for images, _ in parts])
    return images.reshape(-1, 3, 32, 32), np.concatenate([labels for _, labels in parts])


def _png(source: Source, root: str, names: tuple[str, ...]) -> Part:
    """Each row of a PNG is one image of 32×32 pixels. The package spells the labels' names "lables"."""
    images = []
    for name in names:
        try:
            rows = decode(_content(source, f"{root}{name}.png"), None)
        except ImageError as cause:
            raise DataError(
                f"could not read {root}{name}.png in {source.path}: {cause}; get the set again"
            ) from cause
        if rows.shape[0] != 3 or rows.shape[2] != 32 * 32:
            raise DataError(
                f"{root}{name}.png in {source.path} is not 1024 colour pixels wide; get the set again"
            )
        images.append(rows.transpose(1, 0, 2).reshape(-1, 3, 32, 32))
    stem = "train" if names == _TRAIN else "test"
    try:
        labels = np.array(json.loads(source.text(f"{root}{stem}_lables.json")), dtype=np.uint8)
    except (ValueError, TypeError, OverflowError, RecursionError) as cause:
        raise DataError(f"{root}{stem}_lables.json in {source.path} is not a list of labels") from cause
    pixels = np.concatenate(images)
    if labels.shape != (len(pixels),):
        raise DataError(
            f"{source.path} holds {len(pixels)} {stem} images and {labels.size} labels; get the set again"
        )
    return pixels, labels


def _content(source: Source, name: str) -> bytes:
    try:
        return source.read(name)
    except OSError as cause:
        raise DataError(f"could not read {name} in {source.path}: {cause.strerror}") from cause
