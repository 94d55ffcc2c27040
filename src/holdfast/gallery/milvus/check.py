"""Reading a whole gallery in Milvus and comparing everything in it that is stored twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from holdfast.errors import GalleryError
from holdfast.gallery.boxes import named
from holdfast.gallery.columns import largest_norm
from holdfast.gallery.kept import Kept
from holdfast.gallery.milvus import rows
from holdfast.gallery.milvus.view import View


def problems(view: View, certificates: Callable[[], list[Kept]]) -> list[str]:
    """One line for each thing that is wrong; none if the gallery is sound.

    Checked: that every candidate that is counted is there, with what was written; that ids are unique and found
    by their keys; the largest norm; that each has its boxes, which hold its vector, and can move as far as is
    said; the kept certificates.
    """
    found: list[str] = []
    try:
        found += _problems(view)
        certificates()
    except GalleryError as cause:
        found.append(f"cannot be read further: {cause}")
    return found


def _problems(view: View) -> Iterator[str]:
    state = view.state
    count, ids = 0, set()
    for page in view.pages(rows.CANDIDATE):
        count += len(page)
        vectors = rows.vectors_of(page, state.dim)
        if not np.isfinite(vectors).all():
            yield f"a vector in slots {page[0]['slot']} to {page[-1]['slot']} has a NaN or infinity"
        if largest_norm(vectors) > state.max_norm:
            yield f"the largest norm is said to be {state.max_norm}, but is {largest_norm(vectors)}"
        for row in page:
            id = rows.item_of(row).id
            if id in ids:
                yield f"'{id}' is there more than once"
            if row["key"] != rows.key(id):
                yield f"'{id}' cannot be found by its id"
            ids.add(id)
        for eps, name in state.boxes.items():
            yield from _box_problems(view, page, vectors, eps, name)
    if count != state.count:
        yield f"{count} candidates are there where {state.count} are counted"


def _box_problems(
    view: View,
    page: list[rows.Row],
    vectors: np.ndarray[tuple[int, ...], np.dtype[np.float32]],
    eps: float,
    name: str,
) -> Iterator[str]:
    slots = np.array([row["slot"] for row in page], dtype=np.int64)
    if not len(slots):
        return
    where = f"boxes for {named(eps)} in slots {slots[0]} to {slots[-1]}"
    stored = view.fetch(slots, rows.BOX, name)
    if len(stored) != len(slots):
        yield f"{where} are {len(stored)}, not {len(slots)}"
        return
    boxes, reach = rows.boxes_of(rows.in_order(stored, slots), view.state.dim)
    if not boxes.hold(vectors) or (boxes.reach(vectors)[:, 0] > reach).any():
        yield f"{where} do not fit their vectors"
