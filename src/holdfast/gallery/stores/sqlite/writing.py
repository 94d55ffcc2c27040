"""What a write does to the tables, inside the transaction of its caller.

Slots stay dense (0 … count−1): a removal moves the last candidates into the holes, so that a
search runs over plain memory and the file holds no dead vectors.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from holdfast.gallery.exact import Floats, Slots
from holdfast.gallery.kept import Kept
from holdfast.gallery.stores.base import PIECE, VECTOR
from holdfast.gallery.stores.sqlite import certificates, columns, database, items, meta
from holdfast.gallery.stores.sqlite.checksums import root_of
from holdfast.gallery.stores.sqlite.database import DamageError
from holdfast.gallery.values import Item


def from_before(connection: sqlite3.Connection) -> None:
    """Bring a file of before to this version: everything in it, checked by its own rule, is bound to its meta.

    What its boxes and kept certificates prove is another question (`gallery.upgrading`).
    """
    old = meta.read(connection)
    found = items.count(connection)
    if found != old.count:
        raise DamageError(f"{found} items are listed where meta counts {old.count}")
    certificates.read(connection, old)
    database.lay_out(connection, from_before=True)
    listed = items.bind(connection, _vectors(connection, old))
    roots = {
        kind: root_of(mark.part(kind) for mark in columns.marks(connection, column, None))
        for kind, column in old.columns.items()
    }
    new = replace(old, roots=roots, items=listed, kept=certificates.root(connection), bound=True)
    meta.write(connection, new)


def put(
    connection: sqlite3.Connection, new: Sequence[Item], rows: Mapping[str, columns.Rows], slots: Slots
) -> None:
    """Write items into their slots, −1 for a new one, with their rows of the columns that change."""
    state = meta.read(connection)
    fresh, there = (np.flatnonzero(which).tolist() for which in (slots < 0, slots >= 0))
    slots = slots.copy()
    slots[fresh] = np.arange(state.count, state.count + len(fresh))
    vectors = rows[VECTOR] if VECTOR in rows else columns.gather(connection, state.vector, slots)
    listed = items.update(connection, [(int(slots[row]), new[row]) for row in there], vectors[there])
    listed ^= items.insert(connection, state.count, [new[row] for row in fresh], vectors[fresh])
    changes = {
        kind: columns.scatter(connection, state.columns[kind], slots, part, state.generation + 1)
        for kind, part in rows.items()
    }
    meta.write(connection, state.moved_on(state.count + len(fresh), changes, listed))


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


def take(connection: sqlite3.Connection, slots: Iterable[int]) -> None:
    """Remove the items in these slots."""
    state = meta.read(connection)
    count, holes = state.count, sorted(slots)
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


def keep(connection: sqlite3.Connection, new: Iterable[Kept]) -> None:
    """Keep these certificates; one for the same query, threat and k is replaced."""
    state = meta.read(connection)
    meta.write(connection, replace(state, kept=state.kept ^ certificates.write(connection, new)))


def forget(connection: sqlite3.Connection, queries: Iterable[str]) -> int:
    """Drop the certificates of these queries, and say how many there were."""
    state = meta.read(connection)
    count, change = certificates.forget(connection, queries)
    meta.write(connection, replace(state, kept=state.kept ^ change))
    return count


def _vectors(connection: sqlite3.Connection, state: meta.Meta) -> items.Vectors:
    """The vectors of some slots, as the file has them."""
    return lambda slots: columns.gather(connection, state.vector, slots)
