"""Labelled feature vectors for metric learning: from an .npz file, from images, and from a model's embeddings."""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.data import Dataset, ImageSet, hold_out
from holdfast.errors import DataError
from holdfast.files import atomic_path, refuse_other, sha256_file
from holdfast.models import AnyEmbedder
from holdfast.models.smoothed import at_once
from holdfast.progress import bar

CHUNK = 512
TEST_SHARE = 0.25


@dataclass(frozen=True)
class Features:
    """Vectors (N × features, float64) and class numbers of a training and a test part."""

    path: Path
    digest: str
    train: NDArray[np.float64]
    train_labels: NDArray[np.int64]
    test: NDArray[np.float64]
    test_labels: NDArray[np.int64]
    classes: tuple[str, ...]
    embedder: str | None = None
    """The fingerprint of the embedder whose vectors these are, if the file says so."""


def load_features(path: Path, seed: int = 0, *, vectors: str = "X", labels: str = "y") -> Features:
    """The features in `path`: X_train, y_train, X_test, y_test, or X and y, of which a quarter is then for testing.

    Pictures (N × height × width) count as their pixels; words or letters become a feature each for every place and
    word there. `vectors` and `labels` are what the file calls X and y. A file with anything but plain arrays is
    refused.
    """
    parts = (f"{vectors}_train", f"{labels}_train", f"{vectors}_test", f"{labels}_test")
    if not path.is_file():
        raise DataError(f"no file of features at {path}")
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (ValueError, OSError, zipfile.BadZipFile, AttributeError) as cause:
        raise DataError(f"{path} is not an .npz of plain arrays: {cause}") from None
    if set(parts) <= set(arrays):
        coded = _coded([arrays[name] for name in parts[::2]])
        found = [_vectors(path, name, array) for name, array in zip(parts[::2], coded, strict=True)]
        given = [_labels(path, arrays[name], len(v)) for name, v in zip(parts[1::2], found, strict=True)]
    elif {vectors, labels} <= set(arrays):
        whole = _vectors(path, vectors, *_coded([arrays[vectors]]))
        kinds = _labels(path, arrays[labels], len(whole))
        _, numbers = np.unique(kinds, return_inverse=True)
        kept, held = hold_out(numbers.reshape(-1), TEST_SHARE, seed, least=1)
        found, given = [whole[kept], whole[held]], [kinds[kept], kinds[held]]
    else:
        raise DataError(
            f"{path} holds {', '.join(sorted(arrays)) or 'nothing'}; features are {', '.join(parts)}, "
            f"or {vectors} and {labels}"
        )
    if found[0].shape[1] != found[1].shape[1]:
        raise DataError(
            f"{path}: training vectors have {found[0].shape[1]} features, test vectors {found[1].shape[1]}"
        )
    classes = np.unique(np.concatenate(given))
    numbers_of = [np.searchsorted(classes, part).astype(np.int64) for part in given]
    names = tuple(str(name) for name in classes)
    made_by = str(arrays["embedder"]) if "embedder" in arrays else None
    train, test = found
    return Features(
        path.resolve(), sha256_file(path), train, numbers_of[0], test, numbers_of[1], names, made_by
    )


def image_features(images: Dataset, count: int | None = None, seed: int = 0) -> Features:
    """The pixels of a data set of images, in [0, 1], as feature vectors, in the set's own split.

    With `count` at most so many train: drawn at random, of each class as many as its share.
    """
    images.train.require_labels("metric learning")
    assert images.train.labels is not None
    chosen = np.arange(len(images.train))
    if count is not None and count < len(chosen):
        _, chosen = hold_out(images.train.labels, count / len(chosen), seed)
    parts = [images.train.take(chosen), images.test]
    pixels = [part.batch(np.arange(len(part))).numpy().reshape(len(part), -1) for part in parts]
    digest = hashlib.sha256(b"".join(part.tobytes() for part in pixels)).hexdigest()
    labels = [np.asarray(part.labels, dtype=np.int64) for part in parts]
    train, test = (part / 255.0 for part in pixels)
    return Features(Path(images.name), digest, train, labels[0], test, labels[1], images.train.classes)


@dataclass(frozen=True)
class Exported:
    """How many vectors were written to learn from and to test on (0: the file is to be divided)."""

    train: int
    test: int


def export_features(embedder: AnyEmbedder, dataset: Dataset, out: Path) -> Exported:
    """Write a model's vectors of a data set as features, with the embedder's fingerprint.

    X_train, y_train, X_test, y_test. Where the test part has other classes, which no neighbour could name: X and y of
    the training part alone.
    """
    refuse_other(out, b"PK", "file of features")
    parts = {"train": dataset.train, "test": dataset.test}
    if dataset.train.labels is None or dataset.test.labels is None:
        raise DataError(f"{dataset.name} has no labels, so no metric can be learned from it")
    if not len(dataset.train):
        raise DataError(f"{dataset.name} has no training images to learn a metric from")
    names = {name: np.asarray(part.classes)[part.labels] for name, part in parts.items()}
    shared = bool(np.isin(names["test"], names["train"]).any())
    arrays: dict[str, NDArray[Any]] = {"embedder": np.array(embedder.fingerprint())}
    for name in ("train", "test") if shared else ("train",):
        suffix = f"_{name}" if shared else ""
        arrays |= {f"X{suffix}": _embedded(embedder, parts[name]), f"y{suffix}": names[name]}
    with atomic_path(out) as temporary, open(temporary, "wb") as handle:
        np.savez_compressed(handle, **arrays)  # type: ignore[arg-type]
    return Exported(len(dataset.train), len(dataset.test) if shared else 0)


def _embedded(embedder: AnyEmbedder, images: ImageSet) -> NDArray[np.float32]:
    size = at_once(embedder, CHUNK)
    found = []
    with bar("embedding", len(images)) as advance:
        for first in range(0, len(images), size):
            chunk = np.arange(first, min(first + size, len(images)))
            found.append(embedder.embed(images.take(chunk)).numpy())
            advance(len(chunk))
    return np.concatenate(found)


def _coded(arrays: list[NDArray[Any]]) -> list[NDArray[Any]]:
    """Words as 0 or 1 for every place and word that some vector has there; numbers as they are."""
    if any(array.dtype.kind not in "US" or array.ndim != 2 for array in arrays):
        return arrays
    words = np.unique(np.concatenate([array.reshape(-1) for array in arrays]))
    coded = [(array[:, :, None] == words).reshape(len(array), -1) for array in arrays]
    there = np.any([part.any(0) for part in coded], axis=0)
    return [part[:, there] for part in coded]


def _vectors(path: Path, name: str, array: NDArray[Any]) -> NDArray[np.float64]:
    if array.ndim < 2 or not len(array) or array.dtype.kind not in "biuf":
        raise DataError(
            f"{path}: {name} must be vectors of numbers, one a row, found {array.dtype} {array.shape}"
        )
    found = array.reshape(len(array), -1).astype(np.float64)
    if not np.isfinite(found).all():
        row = int(np.flatnonzero(~np.isfinite(found).all(1))[0])
        raise DataError(f"{path}: {name} has NaN or infinity in row {row}; mend or remove it")
    return found


def _labels(path: Path, array: NDArray[Any], count: int) -> NDArray[Any]:
    if array.shape != (count,):
        raise DataError(f"{path}: {count} vectors need as many labels, found {array.shape}")
    return array
