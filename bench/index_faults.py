"""A disk fails while a folder or a tar is indexed: no picture that is still there may leave the gallery.

A gallery is brought up to date, with --prune and every removal allowed, while one operation on the pictures fails:
each in turn, with each error number, once and from then on. Afterwards the gallery must hold what it held before, and
what was said must be one line. At the end a whole disk must bring everything up to date.
"""

from __future__ import annotations

import argparse
import sys
import tarfile
import tempfile
from pathlib import Path

from _common import report
from _faults import CODES, Faults, failing_below

# isort: split
import numpy as np
import torch
from PIL import Image
from torch import nn

import holdfast
from holdfast.errors import HoldfastError
from holdfast.gallery import Gallery


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pictures", type=int, default=20)
    count = parser.parse_args().pictures
    torch.manual_seed(0)
    embedder = holdfast.wrap(nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 4)), (3, 8, 8))
    faults = lost = ended = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "pictures"
        draw(folder, count)
        packed = Path(name) / "packed.tar"
        with tarfile.open(packed, "w") as archive:
            archive.add(folder, "pictures")
        for images in (folder, packed):
            gallery = Path(name) / f"{images.stem}.gallery"
            tried, gone, stopped = every_fault(embedder, images, gallery)
            print(
                f"{images.name}: {tried:,} faults, {stopped:,} ended the run, {gone:,} lost a picture",
                flush=True,
            )
            faults, lost, ended = faults + tried, lost + gone, ended + stopped
    print(f"{faults:,} faults survived, {ended:,} of them by ending the run with nothing removed")
    return 0 if report("index_faults", lost, 0, "lower", "faults after which a picture was lost") else 1


def draw(folder: Path, count: int) -> None:
    """Pictures of noise in two classes."""
    for number in range(count):
        path = folder / ("hats", "coats")[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (10, 10, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path)


def every_fault(embedder: holdfast.Embedder, images: Path, gallery: Path) -> tuple[int, int, int]:
    """How many faults were tried, how many of them lost a picture, and how many ended the run."""

    def index() -> None:
        holdfast.index(embedder, images, gallery, prune=True, max_removed=1).close()

    index()
    before = ids(gallery)
    with failing_below(images, counting := Faults()):
        index()
    tried = gone = stopped = 0
    for at in range(1, counting.count + 1):
        for code in CODES:
            for lasting in (False, True):
                with failing_below(images, Faults(at, code, lasting=lasting)):
                    try:
                        index()
                    except HoldfastError as error:
                        stopped += "\n" not in str(error)
                tried += 1
                gone += ids(gallery) != before
    index()
    return tried, gone + (ids(gallery) != before), stopped


def ids(gallery: Path) -> list[str]:
    """The ids of a gallery."""
    with Gallery.open(gallery, readonly=True) as opened:
        return sorted(opened.ids())


if __name__ == "__main__":
    sys.exit(main())
