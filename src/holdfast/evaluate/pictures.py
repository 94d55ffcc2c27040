"""The pictures that a report's sheet shows, kept with the rows so that a report needs nothing else."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from holdfast.data import ImageSet
from holdfast.data.fit import to_image
from holdfast.errors import DataError
from holdfast.files import atomic_path
from holdfast.rows import Rows

PICTURES = "pictures.zip"
WORST = 12
TYPICAL = 6


def worst_queries(rows: Rows, count: int) -> NDArray[np.int64]:
    """The answerable queries whose right answer stands farthest down, the worst first."""
    columns = rows.columns
    answerable = np.flatnonzero(columns["relevant"] > 0)
    order = np.lexsort((columns["average_precision"][answerable], -columns["first_rank"][answerable]))
    return answerable[order[:count]]


def sheet(rows: Rows) -> dict[str, NDArray[np.int64]]:
    """The rows that a sheet shows: the worst, and some drawn by the seed."""
    worst = worst_queries(rows, WORST)
    rest = np.setdiff1d(np.arange(len(rows)), worst)
    drawn = np.random.default_rng(rows.header["seed"]).permutation(rest)[:TYPICAL]
    return {"worst": worst, "drawn at random": drawn}


def save_pictures(folder: Path, rows: Rows, shown: Mapping[str, NDArray[np.int64]], images: ImageSet) -> None:
    """Store the pictures of the queries of a sheet, and of their hits."""
    wanted: dict[str, None] = {}
    for part in shown.values():
        for row in part:
            wanted[rows.columns["query"][row]] = None
            wanted.update(dict.fromkeys(rows.columns["hits"][row]))
    where = {name: i for i, name in enumerate(images.ids) if name in wanted}
    with atomic_path(folder / PICTURES) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        for name in wanted:
            archive.writestr(zipfile.ZipInfo(name), encode(images.image(where[name])))


def load_pictures(folder: Path) -> dict[str, bytes]:
    """Encoded pictures by image id; none where the folder has no pictures."""
    path = folder / PICTURES
    if not path.exists():
        return {}
    try:
        with zipfile.ZipFile(path) as archive:
            return {name: archive.read(name) for name in archive.namelist()}
    except (zipfile.BadZipFile, OSError) as error:
        raise DataError(
            f"{path} is damaged ({error}); remove it, and the report goes without pictures"
        ) from None


def encode(pixels: NDArray[np.uint8]) -> bytes:
    """CHW pixels as a PNG where they are small or grey, else as a JPEG."""
    channels, height, width = pixels.shape
    image = to_image(pixels)
    buffer = io.BytesIO()
    if channels == 1 or height * width <= 32 * 32:
        image.save(buffer, "PNG", optimize=True)
    else:
        image.save(buffer, "JPEG", quality=85)
    return buffer.getvalue()
