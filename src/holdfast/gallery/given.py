"""What callers give a gallery, checked before anything is written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from holdfast.errors import GalleryError
from holdfast.gallery.exact import Floats
from holdfast.gallery.values import Item

_NAMED = 3


def matrix(values: ArrayLike, dim: int, what: str) -> Floats:
    """`values` as contiguous float32 rows of `dim` finite numbers; one row may come without its axis."""
    array = np.asarray(values)
    if array.dtype.kind not in "fiu":
        raise GalleryError(f"{what} must be real numbers, not {array.dtype}")
    if array.ndim == 1:
        array = array[None, :]
    if array.ndim != 2 or array.shape[1] != dim:
        raise GalleryError(f"{what} must have {dim} numbers each; found an array of shape {array.shape}")
    with np.errstate(over="ignore"):
        rows = np.ascontiguousarray(array, dtype=np.float32)
    bad = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if len(bad):
        raise GalleryError(f"{what} must be finite; number {bad[0] + 1} of {len(rows)} has a NaN or infinity")
    return rows


def make_items(
    ids: Sequence[str],
    labels: Sequence[str | None] | None,
    paths: Sequence[str | None] | None,
    digests: Sequence[str | None] | None,
) -> list[Item]:
    """One item per id, checked: ids are distinct, non-empty strings; the rest strings or None."""
    if isinstance(ids, str):
        raise GalleryError(f"ids must be a list of strings, not the one string '{ids}'")
    texts: list[Sequence[str | None]] = [ids]
    for name, values in (("labels", labels), ("paths", paths), ("digests", digests)):
        texts.append([None] * len(ids) if values is None else values)
        if len(texts[-1]) != len(ids):
            raise GalleryError(f"{len(ids)} ids came with {len(texts[-1])} {name}; give one for each")
    for name, values in zip(("id", "label", "path", "digest"), texts, strict=True):
        for text in values:
            _check_text(name, text)
    repeated = [name for name, times in Counter(ids).items() if times > 1]
    if repeated:
        raise GalleryError(f"given more than once: {some(repeated)}; ids are distinct")
    return [Item(*row) for row in zip(ids, *texts[1:], strict=True)]


def _check_text(name: str, text: object) -> None:
    if text is None and name != "id":
        return
    if not isinstance(text, str) or (name == "id" and not text):
        wanted = "an id is a string, not empty" if name == "id" else f"a {name} is a string or None"
        raise GalleryError(f"{wanted}; found {text!r}")
    try:
        text.encode()
    except UnicodeEncodeError as cause:
        raise GalleryError(f"{name} {text!r} is not valid Unicode; rename it") from cause


def some(names: Sequence[str]) -> str:
    """A few names, and how many more there are."""
    shown = ", ".join(f"'{name}'" for name in names[:_NAMED])
    return shown if len(names) <= _NAMED else f"{shown} and {len(names) - _NAMED} more"
