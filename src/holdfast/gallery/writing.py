"""What a write does to the tables, inside the transaction of its caller.

Slots stay dense (0 … count−1): a removal moves the last candidates into the holes, so that a
search runs over plain memory and the file holds no dead vectors.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from holdfast.errors import GalleryError
from holdfast.gallery import boxes, columns, database, items
from holdfast.gallery.exact import Floats
from holdfast.gallery.values import Item

VECTOR = "vector"

PIECE = 256
"""How many candidates are given a new column at a time."""

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


def add(
    connection: sqlite3.Connection, new: list[Item], rows: Mapping[str, columns.Rows], *, replace: bool
) -> None:
    """Add items with their rows of every column; those there are updated if `replace`, else all are refused."""
    count, generation = _next(connection)
    known = columns.declared(connection)
    if known.keys() != rows.keys():
        has, given = (boxes.named(*boxes.sizes(kinds)) or "none" for kinds in (known, rows))
        raise GalleryError(
            f"every candidate has the boxes that its gallery has: found boxes for {given}, not {has};"
            " nothing was added"
        )
    present = items.slots_of(connection, (item.id for item in new)) if count else {}
    if present and not replace:
        raise GalleryError(f"already in the gallery: {some(list(present))}; nothing was added")
    fresh = [row for row, item in enumerate(new) if item.id not in present]
    slots = np.empty(len(new), dtype=np.int64)
    slots[fresh] = np.arange(count, count + len(fresh))
    for row, item in enumerate(new):
        if item.id in present:
            slots[row] = present[item.id]
    items.update(connection, ((present[item.id], item) for item in new if item.id in present))
    items.insert(connection, count, (new[row] for row in fresh))
    for name, column in known.items():
        columns.scatter(connection, column, slots, rows[name], generation)
    _settle(connection, count + len(fresh), generation)


def describe(connection: sqlite3.Connection, changed: list[Item]) -> None:
    """Give items that are there another label, path and digest; all or none."""
    count, generation = _next(connection)
    present = items.slots_of(connection, (item.id for item in changed))
    missing = [item.id for item in changed if item.id not in present]
    if missing:
        raise GalleryError(f"not in the gallery: {some(missing)}; nothing was changed")
    items.update(connection, ((present[item.id], item) for item in changed))
    _settle(connection, count, generation)


def extend(
    connection: sqlite3.Connection,
    new: Sequence[columns.Column],
    make: Callable[[list[Item], Floats], Mapping[str, columns.Rows]],
) -> None:
    """Add columns; `make` gives their rows for some items with their vectors, a piece at a time."""
    database.upgrade(connection)
    count, generation = _next(connection)
    vectors = columns.declared(connection)[VECTOR]
    for column in new:
        columns.declare(connection, column)
    for first in range(0, count, PIECE):
        slots = np.arange(first, min(first + PIECE, count))
        found = items.items_at(connection, slots.tolist())
        rows = make([found[slot] for slot in slots.tolist()], columns.gather(connection, vectors, slots))
        for column in new:
            columns.scatter(connection, column, slots, rows[column.kind], generation)
    _settle(connection, count, generation)


def remove(connection: sqlite3.Connection, ids: Iterable[str]) -> int:
    """Remove those of `ids` that are in the gallery, and say how many there were."""
    count, generation = _next(connection)
    holes = sorted(set(items.slots_of(connection, ids).values()))
    if not holes:
        return 0
    left = count - len(holes)
    gone = set(holes)
    movers = np.array([slot for slot in range(left, count) if slot not in gone], dtype=np.int64)
    targets = np.array([slot for slot in holes if slot < left], dtype=np.int64)
    items.delete(connection, holes)
    items.move(connection, zip(movers.tolist(), targets.tolist(), strict=True))
    for column in columns.declared(connection).values():
        moved = columns.gather(connection, column, movers)
        columns.scatter(connection, column, targets, moved, generation)
        columns.shrink(connection, column, left, generation)
    _settle(connection, left, generation)
    return len(holes)


def _next(connection: sqlite3.Connection) -> tuple[int, int]:
    count, generation = connection.execute("SELECT count, generation FROM meta").fetchone()
    return count, generation + 1


def _settle(connection: sqlite3.Connection, count: int, generation: int) -> None:
    connection.execute("UPDATE meta SET count = ?, generation = ?", (count, generation))


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
