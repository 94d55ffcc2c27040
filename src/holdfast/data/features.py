"""Labelled feature vectors from an .npz file, for metric learning."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.data.splits import hold_out
from holdfast.errors import DataError
from holdfast.files import sha256_file

TEST_SHARE = 0.25
PARTS = ("X_train", "y_train", "X_test", "y_test")


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


def load_features(path: Path, seed: int = 0) -> Features:
    """The features in `path`: X_train, y_train, X_test, y_test, or X and y, of which a quarter is then for testing.

    Pictures (N × height × width) count as their pixels. A file with anything but plain arrays is refused.
    """
    if not path.is_file():
        raise DataError(f"no file of features at {path}")
    try:
        with np.load(path, allow_pickle=False) as found:
            arrays = {name: found[name] for name in found.files}
    except (ValueError, OSError, zipfile.BadZipFile, AttributeError) as cause:
        raise DataError(f"{path} is not an .npz of plain arrays: {cause}") from None
    if set(PARTS) <= set(arrays):
        vectors = [_vectors(path, name, arrays[name]) for name in ("X_train", "X_test")]
        labels = [_labels(path, arrays[name], len(v)) for name, v in zip(PARTS[1::2], vectors, strict=True)]
    elif {"X", "y"} <= set(arrays):
        whole = _vectors(path, "X", arrays["X"])
        kinds = _labels(path, arrays["y"], len(whole))
        _, numbers = np.unique(kinds, return_inverse=True)
        kept, held = hold_out(numbers.reshape(-1), TEST_SHARE, seed, least=1)
        vectors, labels = [whole[kept], whole[held]], [kinds[kept], kinds[held]]
    else:
        raise DataError(
            f"{path} holds {', '.join(sorted(arrays)) or 'nothing'}; features are X_train, y_train, X_test, y_test, "
            "or X and y"
        )
    if vectors[0].shape[1] != vectors[1].shape[1]:
        raise DataError(
            f"{path}: training vectors have {vectors[0].shape[1]} features, test vectors {vectors[1].shape[1]}"
        )
    classes = np.unique(np.concatenate(labels))
    numbers_of = [np.searchsorted(classes, part).astype(np.int64) for part in labels]
    return Features(
        path.resolve(),
        sha256_file(path),
        vectors[0],
        numbers_of[0],
        vectors[1],
        numbers_of[1],
        tuple(str(name) for name in classes),
        str(arrays["embedder"]) if "embedder" in arrays else None,
    )


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
