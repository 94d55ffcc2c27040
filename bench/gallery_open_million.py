"""Opening a gallery of 1,000,000 × 128 from its mapped cache, until the first exact answer.

The time includes comparing all vectors with their checksums, which happens when they are first used. Beside it:
the same without the cache, opening alone, reading the bytes of the file, and the memory of a process that has
answered (what it does not share with others that map the same cache).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from _common import alternate, report

# isort: split
import _gallery
from holdfast.gallery import Gallery
from holdfast.gallery.stores.sqlite.cache import folder_of

PIECE = 50_000
MEMORY = """
import sys
import faiss
import numpy as np
from holdfast.gallery import Gallery
def own():
    lines = open("/proc/self/smaps_rollup").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Anonymous:")) / 1024
before = own()
with Gallery.open(sys.argv[1], readonly=True) as gallery:
    gallery.nearest(np.zeros(gallery.info.dim, np.float32), 10)
    print(own() - before)
"""


def filled(path: Path, count: int) -> None:
    with Gallery.create(path, dim=_gallery.DIM, embedder=_gallery.EMBEDDER) as gallery:
        for first in range(0, count, PIECE):
            size = min(PIECE, count - first)
            ids = [f"image-{first + number:07d}" for number in range(size)]
            gallery.add(ids, _gallery.vectors(size, first), paths=[f"images/{id}.jpg" for id in ids])


def read(path: Path) -> None:
    """All bytes, without room for all of them."""
    with open(path, "rb") as handle:
        while handle.read(1 << 24):
            pass


@contextmanager
def uncached(path: Path) -> Iterator[None]:
    """The gallery without its cache."""
    aside = folder_of(path).rename(path.with_name("aside"))
    try:
        yield
    finally:
        aside.rename(folder_of(path))


def memory(path: Path) -> float:
    """MB that a process takes for itself to open and search."""
    command = [sys.executable, "-c", MEMORY, str(path)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--count", type=int, default=1_000_000)
    options.add_argument("--repeats", type=int, default=5)
    chosen = options.parse_args()
    query = _gallery.vectors(1, 1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "g"
        filled(path, chosen.count)
        start = time.perf_counter()
        with Gallery.open(path, readonly=True) as gallery:
            written = gallery.write_cache()
        print(f"cache of {written.bytes / 1e6:,.0f} MB written in {time.perf_counter() - start:.1f} s")

        def answer() -> None:
            with Gallery.open(path, readonly=True) as gallery:
                gallery.nearest(query, 10)

        def answer_uncached() -> None:
            with uncached(path):
                answer()

        seconds = alternate(
            {
                "opened": lambda: Gallery.open(path, readonly=True).close(),
                "answered": answer,
                "answered without": answer_uncached,
                "read": lambda: read(path),
            },
            chosen.repeats,
        )
        size = path.stat().st_size / 1e6
        print(
            f"{chosen.count:,} × {_gallery.DIM}, {size:,.0f} MB: opened in {seconds['opened'] * 1e3:.0f} ms, first "
            f"answer after {seconds['answered']:.2f} s; without a cache after {seconds['answered without']:.2f} s; "
            f"the file's bytes are read in {seconds['read']:.2f} s"
        )
        ours = memory(path)
        with uncached(path):
            print(f"memory of its own: {ours:,.0f} MB; without a cache {memory(path):,.0f} MB")
    against = "seconds from opening to the first exact answer, all checksums compared"
    return 0 if report("gallery_open_million", seconds["answered"], 3.0, "lower", against) else 1


if __name__ == "__main__":
    sys.exit(main())
