"""Make the part of Fashion-MNIST that comes with the package: python scripts/make_bundled.py [FOLDER]

FOLDER holds the four official idx files; without it the set is looked for where Holdfast looks. The same
images are drawn every time; the packed bytes also depend on the version of zlib.
"""

from __future__ import annotations

import gzip
import io
import struct
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from holdfast.data.locate import require
from holdfast.data.registry import dataset_info
from holdfast.data.sets.idx import read_fashion
from holdfast.data.settings import BUNDLED
from holdfast.data.source import open_source
from holdfast.files import atomic_write, sha256_file

SEED = 2017
PER_CLASS = {"train": 800, "t10k": 200}


def drawn(labels: NDArray[np.int64], per_class: int, seed: int) -> NDArray[np.int64]:
    """Sorted indices of `per_class` images of each class."""
    random = np.random.default_rng(seed)
    chosen = [
        random.permutation(np.flatnonzero(labels == label))[:per_class] for label in range(labels.max() + 1)
    ]
    return np.sort(np.concatenate(chosen))


def packed(array: NDArray[np.uint8]) -> bytes:
    """`array` as a gzipped idx file, without the time and name that gzip would add."""
    header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=buffer, compresslevel=9, mtime=0) as handle:
        handle.write(header + array.tobytes())
    return buffer.getvalue()


def main() -> None:
    """Write the four files and print their checksums."""
    place = Path(sys.argv[1]) if len(sys.argv) > 1 else require(dataset_info("fashion-mnist"))
    with open_source(place) as source:
        listing = read_fashion(source)
    tests = listing.official["closed"]
    labels = listing.labels
    assert labels is not None
    target = BUNDLED / "fashion-mnist-mini"
    for part, per_class in PER_CLASS.items():
        rows = np.flatnonzero(tests if part == "t10k" else ~tests)
        rows = rows[drawn(labels[rows], per_class, SEED)]
        atomic_write(target / f"{part}-images-idx3-ubyte.gz", packed(listing.pixels[rows, 0]))
        atomic_write(target / f"{part}-labels-idx1-ubyte.gz", packed(labels[rows].astype(np.uint8)))
    for path in sorted(target.glob("*.gz")):
        print(sha256_file(path), path.stat().st_size, path.name)


if __name__ == "__main__":
    main()
