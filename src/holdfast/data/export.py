"""Images of a set as files: one folder per class, ready for `holdfast index`."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from holdfast.data.fit import to_image
from holdfast.data.imageset import ImageSet
from holdfast.errors import DataError
from holdfast.progress import bar


def export_images(images: ImageSet, out: Path, limit: int | None = None) -> int:
    """Write the images as PNG files below `out`, at most `limit` of each class; how many were written."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DataError(f"{out} is not an empty folder; choose another")
    taken: Counter[str] = Counter()
    with bar("writing", len(images)) as advance:
        for i, name in enumerate(images.ids):
            advance()
            folder = "" if images.labels is None else _safe(images.classes[images.labels[i]])
            if limit is not None and taken[folder] >= limit:
                continue
            taken[folder] += 1
            path = out / folder / f"{_safe(Path(name).with_suffix('').as_posix())}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            to_image(images.image(i)).save(path)
    return taken.total()


def _safe(name: str) -> str:
    return re.sub(r"[^\w. -]+", "-", name).strip(". -") or "image"
