"""What a write does to the tables, inside the transaction of its caller.

Slots stay dense (0 … count−1): a removal moves the last candidates into the holes, so that a
search runs over plain memory and the file holds no dead vectors.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from holdfast.errors import GalleryError
from holdfast.gallery import boxes, columns, database, items, kept, meta
from holdfast.gallery.checksums import root_of
from holdfast.gallery.database import DamageError
from holdfast.gallery.exact import Floats, Slots
from holdfast.gallery.kept import Kept
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


def from_before(connection: sqlite3.Connection) -> None:
    """Bring a file of before to this version: everything in it, checked by its own rule, is bound to its meta.

    What its boxes and kept certificates prove is another question (`gallery.upgrading`).
    """
    old = meta.read(connection)
    found = items.count(connection)
    if found != old.count:
        raise DamageError(f"{found} items are listed where meta counts {old.count}")
    kept.read(connection, old)
    database.lay_out(connection, from_before=True)
    listed = items.bind(connection, _vectors(connection, old))
    roots = {
        kind: root_of(mark.part(kind) for mark in columns.marks(connection, column, None))
        for kind, column in old.columns.items()
    }
    new = replace(old, roots=roots, items=listed, kept=kept.root(connection), bound=True)
    meta.write(connection, new)


def add(
    connection: sqlite3.Connection, new: list[Item], rows: Mapping[str, columns.Rows], *, replace: bool
) -> None:
    """Add items with their rows of every column; those there are updated if `replace`, else all are refused."""
    state = meta.read(connection)
    count, known = state.count, state.columns
    if known.keys() != rows.keys():
        has, given = (boxes.named(*boxes.sizes(kinds)) or "none" for kinds in (known, rows))
        raise GalleryError(
            f"every candidate has the boxes that its gallery has: found boxes for {given}, not {has};"
            " nothing was added"
        )
    present = items.slots_of(connection, (i.id for i in new), _vectors(connection, state)) if count else {}
    if present and not replace:
        raise GalleryError(f"already in the gallery: {some(list(present))}; nothing was added")
    fresh = [row for row, item in enumerate(new) if item.id not in present]
    there = [row for row, item in enumerate(new) if item.id in present]
    slots = np.empty(len(new), dtype=np.int64)
    slots[fresh] = np.arange(count, count + len(fresh))
    slots[there] = [present[new[row].id] for row in there]
    vectors = rows[VECTOR]
    listed = items.update(connection, [(int(slots[row]), new[row]) for row in there], vectors[there])
    listed ^= items.insert(connection, count, [new[row] for row in fresh], vectors[fresh])
    changes = {
        name: columns.scatter(connection, column, slots, rows[name], state.generation + 1)
        for name, column in known.items()
    }
    meta.write(connection, state.moved_on(count + len(fresh), changes, listed))


def describe(connection: sqlite3.Connection, changed: list[Item]) -> None:
    """Give items that are there another label, path and digest; all or none."""
    state = meta.read(connection)
    vectors = _vectors(connection, state)
    present = items.slots_of(connection, (item.id for item in changed), vectors)
    missing = [item.id for item in changed if item.id not in present]
    if missing:
        raise GalleryError(f"not in the gallery: {some(missing)}; nothing was changed")
    places = [(present[item.id], item) for item in changed]
    slots = np.array([slot for slot, _ in places], dtype=np.int64)
    listed = items.update(connection, places, vectors(slots))
    meta.write(connection, state.moved_on(state.count, {}, listed))


def extend(
    connection: sqlite3.Connection,
    new: Sequence[columns.Column],
    make: Callable[[list[Item], Floats], Mapping[str, columns.Rows]],
) -> None:
    """Add columns; `make` gives their rows for some items with their vectors, a piece at a time."""
    state = meta.read(connection)
    for column in new:
        state = meta.declare(connection, state, column)
    changes = dict.fromkeys((column.kind for column in new), 0)
    for slots, found, vectors in pieces(connection, state):
        rows = make(found, vectors)
        for column in new:
            changes[column.kind] ^= columns.scatter(
                connection, column, slots, rows[column.kind], state.generation + 1
            )
    meta.write(connection, state.moved_on(state.count, changes))


def pieces(connection: sqlite3.Connection, state: meta.Meta) -> Iterator[tuple[Slots, list[Item], Floats]]:
    """All candidates in pieces: their slots, their items, their vectors."""
    for first in range(0, state.count, PIECE):
        slots = np.arange(first, min(first + PIECE, state.count))
        vectors = columns.gather(connection, state.vector, slots)
        found = items.items_at(connection, slots.tolist(), lambda some, v=vectors, f=first: v[some - f])  # type: ignore[misc]
        if len(found) != len(slots):
            raise DamageError(f"an item in slots {first} to {slots[-1]} is missing")
        yield slots, [found[slot] for slot in slots.tolist()], vectors


def remove(connection: sqlite3.Connection, ids: Iterable[str]) -> int:
    """Remove those of `ids` that are in the gallery, and say how many there were."""
    state = meta.read(connection)
    count = state.count
    holes = sorted(set(items.slots_of(connection, ids, _vectors(connection, state)).values()))
    if not holes:
        return 0
    left = count - len(holes)
    gone = set(holes)
    movers = np.array([slot for slot in range(left, count) if slot not in gone], dtype=np.int64)
    targets = np.array([slot for slot in holes if slot < left], dtype=np.int64)
    listed = items.delete(connection, holes)
    pairs = list(zip(movers.tolist(), targets.tolist(), strict=True))
    listed ^= items.move(connection, pairs, columns.gather(connection, state.vector, movers))
    changes = {}
    for kind, column in state.columns.items():
        moved = columns.gather(connection, column, movers)
        changes[kind] = columns.scatter(connection, column, targets, moved, state.generation + 1)
        changes[kind] ^= columns.shrink(connection, column, left, state.generation + 1)
    meta.write(connection, state.moved_on(left, changes, listed))
    return len(holes)


def keep(connection: sqlite3.Connection, certificates: Iterable[Kept]) -> None:
    """Keep these certificates; one for the same query, threat and k is replaced."""
    state = meta.read(connection)
    _settle_kept(connection, state, kept.write(connection, certificates))


def forget(connection: sqlite3.Connection, queries: Iterable[str]) -> int:
    """Drop the certificates of these queries, and say how many there were."""
    state = meta.read(connection)
    count, change = kept.forget(connection, queries)
    _settle_kept(connection, state, change)
    return count


def _settle_kept(connection: sqlite3.Connection, state: meta.Meta, change: int) -> None:
    meta.write(connection, replace(state, kept=state.kept ^ change))


def _vectors(connection: sqlite3.Connection, state: meta.Meta) -> items.Vectors:
    """The vectors of some slots, as the file has them."""
    return lambda slots: columns.gather(connection, state.vector, slots)


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
