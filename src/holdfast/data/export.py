"""Images of a set as files: one folder per class, ready for `holdfast index`."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from holdfast.data.fit import to_image
from holdfast.data.imageset import ImageSet
from holdfast.errors import DataError
from holdfast.files import storage_error
from holdfast.progress import bar


def export_images(images: ImageSet, out: Path, limit: int | None = None) -> int:
    """Write the images as PNG files below `out`, at most `limit` of each class; how many were written."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DataError(f"{out} is not an empty folder; choose another")
    taken: Counter[str] = Counter()
    used: set[Path] = set()
    try:
        with bar("writing", len(images)) as advance:
            for i, name in enumerate(images.ids):
                advance()
                folder = "" if images.labels is None else _safe(images.classes[images.labels[i]])
                if limit is not None and taken[folder] >= limit:
                    continue
                taken[folder] += 1
                path = _free(out / folder / f"{_safe(Path(name).with_suffix('').as_posix())}.png", used)
                path.parent.mkdir(parents=True, exist_ok=True)
                to_image(images.image(i)).save(path)
    except OSError as cause:
        raise storage_error(out, cause) from cause
    return taken.total()


def _free(path: Path, used: set[Path]) -> Path:
    """`path`, or the first numbered form of it that no other image has."""
    number, free = 1, path
    while free in used:
        number += 1
        free = path.with_stem(f"{path.stem}-{number}")
    used.add(free)
    return free


def _safe(name: str) -> str:
    return re.sub(r"[^\w. -]+", "-", name).strip(". -") or "image"
