"""The table of items: which candidate is in which slot.

The checksum of an item covers what it says, its slot and the vector in that slot, so that no vector is ever shown
under another's id. Ids are found by the index of SQLite; where that finds none, a second index, of hashes of the ids,
is asked as well: one damaged page must not make an item disappear.
"""

from __future__ import annotations

import hashlib
import sqlite3
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, pairwise
from typing import Any, TypeVar

import numpy as np

from holdfast.gallery.exact import Floats, Slots
from holdfast.gallery.stores.sqlite import checksums
from holdfast.gallery.stores.sqlite.checksums import root_of
from holdfast.gallery.stores.sqlite.database import DamageError, typed
from holdfast.gallery.values import Item

T = TypeVar("T")

Vectors = Callable[[Slots], Floats]
"""Gives the vectors of some slots, to compare items with; a file of before does not bind them (None)."""

_CHUNK = 500
_PAGE = 10_000
_FIELDS = "slot, id, label, path, digest, checksum"


def slots_of(connection: sqlite3.Connection, ids: Iterable[str], vectors: Vectors | None) -> dict[str, int]:
    """The slots of those of `ids` that are in the gallery."""
    found: dict[str, int] = {}
    for chunk in _chunks(ids):
        rows = connection.execute(f"SELECT {_FIELDS} FROM items WHERE id IN ({_marks(chunk)})", chunk)
        found.update({item.id: slot for slot, item in _sound(rows.fetchall(), vectors)})
        if vectors is not None:
            _check_missing(connection, [id for id in chunk if id not in found], vectors)
    return found


def items_at(
    connection: sqlite3.Connection, slots: Iterable[int], vectors: Vectors | None
) -> dict[int, Item]:
    """The items in `slots`."""
    found: dict[int, Item] = {}
    for chunk in _chunks(slots):
        rows = connection.execute(f"SELECT {_FIELDS} FROM items WHERE slot IN ({_marks(chunk)})", chunk)
        found.update(_sound(rows.fetchall(), vectors))
    return found


def by_id(connection: sqlite3.Connection, count: int, vectors: Vectors | None, root: int) -> Iterator[Item]:
    """All `count` items in the order of their ids; an error at the end if they are not those of `root`."""
    found = connection.execute(f"SELECT {_FIELDS} FROM items ORDER BY id")
    seen, last, parts = 0, "", 0
    while rows := found.fetchmany(_PAGE):
        for _, item in _sound(rows, vectors):
            if item.id <= last:
                raise DamageError(f"the item '{item.id}' is out of order")
            seen, last = seen + 1, item.id
            yield item
        parts ^= root_of(row[5] for row in rows)
    if seen != count:
        raise DamageError(f"{seen} items are listed where meta counts {count}")
    if vectors is not None and parts != root:
        raise DamageError("its items are not those of the last write")


def count(connection: sqlite3.Connection) -> int:
    """How many items are listed."""
    return int(connection.execute("SELECT count(*) FROM items").fetchone()[0])


def page(connection: sqlite3.Connection, after: str, vectors: Vectors | None) -> list[Item]:
    """The next items in the order of their ids, after `after`; empty at the end."""
    found = connection.execute(
        f"SELECT {_FIELDS} FROM items WHERE id > ? ORDER BY id LIMIT ?", (after, _PAGE)
    )
    items = [item for _, item in _sound(found.fetchall(), vectors)]
    if any(one >= other for one, other in pairwise([after, *(item.id for item in items)])):
        raise DamageError("the index of its ids is out of order")  # It would be followed in circles.
    return items


def insert(connection: sqlite3.Connection, start: int, items: Sequence[Item], vectors: Floats) -> int:
    """Put `items` into the slots from `start` on; gives, as all writes here, by how much the root changes."""
    sums = [bound(slot, *both) for slot, both in enumerate(zip(items, vectors, strict=True), start)]
    connection.executemany(
        f"INSERT INTO items ({_FIELDS}, key) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (
            (slot, item.id, item.label, item.path, item.digest, sums[slot - start], key(item.id))
            for slot, item in enumerate(items, start)
        ),
    )
    return root_of(sums)


def update(connection: sqlite3.Connection, items: Sequence[tuple[int, Item]], vectors: Floats) -> int:
    """Give the items in these slots, which have these vectors now, the label, path and digest of the new ones."""
    old = _root_at(connection, (slot for slot, _ in items))
    sums = [bound(slot, item, vector) for (slot, item), vector in zip(items, vectors, strict=True)]
    connection.executemany(
        "UPDATE items SET label = ?, path = ?, digest = ?, checksum = ? WHERE slot = ?",
        (
            (item.label, item.path, item.digest, new, slot)
            for (slot, item), new in zip(items, sums, strict=True)
        ),
    )
    return old ^ root_of(sums)


def delete(connection: sqlite3.Connection, slots: Sequence[int]) -> int:
    """Forget the items in `slots`."""
    old = _root_at(connection, slots)
    connection.executemany("DELETE FROM items WHERE slot = ?", ((slot,) for slot in slots))
    return old


def move(connection: sqlite3.Connection, pairs: Sequence[tuple[int, int]], vectors: Floats) -> int:
    """Move items, each pair from its first slot to its second, which is free; their vectors move with them."""
    old = _root_at(connection, (at for at, _ in pairs))
    places = {at: row for row, (at, _) in enumerate(pairs)}
    moved = items_at(
        connection, list(places), lambda slots: vectors[[places[slot] for slot in slots.tolist()]]
    )
    if len(moved) != len(pairs):
        raise DamageError(f"{len(pairs) - len(moved)} of the last {len(pairs)} items are missing")
    sums = [bound(to, moved[at], vectors[places[at]]) for at, to in pairs]
    connection.executemany(
        "UPDATE items SET slot = ?, checksum = ? WHERE slot = ?",
        ((to, new, at) for (at, to), new in zip(pairs, sums, strict=True)),
    )
    return old ^ root_of(sums)


def bind(connection: sqlite3.Connection, vectors: Vectors) -> int:
    """Bind the items of a file of before, checked by its own rule, to their slots and vectors; gives their root."""
    last, root = -1, 0
    while True:
        statement = f"SELECT {_FIELDS} FROM items WHERE slot > ? ORDER BY slot LIMIT ?"
        rows = _sound(connection.execute(statement, (last, _PAGE)).fetchall(), None)
        if not rows:
            return root
        found = vectors(np.array([slot for slot, _ in rows], dtype=np.int64))
        sums = [bound(slot, item, vector) for (slot, item), vector in zip(rows, found, strict=True)]
        connection.executemany(
            "UPDATE items SET checksum = ?, key = ? WHERE slot = ?",
            ((new, key(item.id), slot) for (slot, item), new in zip(rows, sums, strict=True)),
        )
        last, root = rows[-1][0], root ^ root_of(sums)


def bound(slot: int, item: Item, vector: Floats) -> int:
    """CRC-32 of everything an item says, its slot and its vector."""
    return _bound((slot, item.id, item.label, item.path, item.digest), vector)


def _bound(said: tuple[object, ...], vector: Floats) -> int:
    return zlib.crc32(vector.tobytes(), checksums.checksum(*said))


def key(id: str) -> int:
    """By what the second index knows an id: equal for equal ids and nearly always different for others."""
    return int.from_bytes(hashlib.blake2b(id.encode(), digest_size=8).digest(), "little", signed=True)


def _root_at(connection: sqlite3.Connection, slots: Iterable[int]) -> int:
    """What the items in these slots add to the root of all: their checksums."""
    root = 0
    for chunk in _chunks(slots):
        found = connection.execute(f"SELECT checksum FROM items WHERE slot IN ({_marks(chunk)})", chunk)
        for (one,) in found:
            typed("the table of items", [one], int)
            root ^= one
    return root


def _sound(rows: Sequence[tuple[Any, ...]], vectors: Vectors | None) -> list[tuple[int, Item]]:
    """The items of these rows; refused if one is not what was written, in its place."""
    if vectors is None:
        text = (str, type(None))
        for row in rows:
            typed(f"the item in slot {row[0]}", row, int, str, text, text, text, int)
        sums = [checksums.checksum(*row[1:5]) for row in rows]
    else:
        slots = [row[0] for row in rows]
        typed("the table of items", slots, *[int] * len(slots))
        # The other types are part of what the checksums cover.
        found = vectors(np.array(slots, dtype=np.int64))
        sums = [_bound(row[:5], vector) for row, vector in zip(rows, found, strict=True)]
    for row, wanted in zip(rows, sums, strict=True):
        if row[5] != wanted:
            raise DamageError(f"the item {row[1]!r} in slot {row[0]} does not match its checksum")
    return [(row[0], Item(*row[1:5])) for row in rows]


def _check_missing(connection: sqlite3.Connection, ids: Sequence[str], vectors: Vectors) -> None:
    """Refuse a gallery whose second index knows one of these ids, or whose first, which does not, is broken."""
    if not ids:
        return
    found = connection.execute(
        f"SELECT {_FIELDS} FROM items WHERE key IN ({_marks(ids)})", [key(id) for id in ids]
    )
    wrong = {item.id for _, item in _sound(found.fetchall(), vectors)} & set(ids)
    if wrong:
        raise DamageError(f"the item '{wrong.pop()}' is not found by its id")
    beside = []  # The first index must at least lead to sound items beside one of them.
    for which, order in (("<", "DESC"), (">", "ASC")):
        statement = f"SELECT {_FIELDS} FROM items WHERE id {which} ? ORDER BY id {order} LIMIT 1"
        beside += _sound(connection.execute(statement, (ids[0],)).fetchall(), vectors)
    if not beside and connection.execute("SELECT 1 FROM items NOT INDEXED LIMIT 1").fetchone() is not None:
        raise DamageError("its items are not found by their ids")


def _chunks(values: Iterable[T]) -> Iterator[list[T]]:
    rest = iter(values)
    while chunk := list(islice(rest, _CHUNK)):
        yield chunk


def _marks(chunk: Sequence[object]) -> str:
    return ",".join("?" * len(chunk))
