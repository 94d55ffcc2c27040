"""The table of items: which candidate is in which slot."""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

from holdfast.gallery.database import DamageError
from holdfast.gallery.values import Item

T = TypeVar("T")

_CHUNK = 500
_PAGE = 10_000


def slots_of(connection: sqlite3.Connection, ids: Iterable[str]) -> dict[str, int]:
    """The slots of those of `ids` that are in the gallery."""
    found: dict[str, int] = {}
    for chunk in _chunks(ids):
        found.update(connection.execute(f"SELECT id, slot FROM items WHERE id IN ({_marks(chunk)})", chunk))
    return found


def ids_at(connection: sqlite3.Connection, slots: Iterable[int]) -> dict[int, str]:
    """The ids of the items in `slots`."""
    found: dict[int, str] = {}
    for chunk in _chunks(slots):
        found.update(connection.execute(f"SELECT slot, id FROM items WHERE slot IN ({_marks(chunk)})", chunk))
    return found


def items_at(connection: sqlite3.Connection, slots: Iterable[int]) -> dict[int, Item]:
    """The items in `slots`."""
    found: dict[int, Item] = {}
    for chunk in _chunks(slots):
        statement = (
            f"SELECT slot, id, label, path, digest, checksum FROM items WHERE slot IN ({_marks(chunk)})"
        )
        for slot, *fields, stored in connection.execute(statement, chunk):
            found[slot] = Item(*fields)
            if stored != checksum(found[slot]):
                raise DamageError(f"the item in slot {slot} does not match its checksum")
    return found


def by_id(connection: sqlite3.Connection) -> Iterator[Item]:
    """All items in the order of their ids."""
    found = connection.execute("SELECT id, label, path, digest, checksum FROM items ORDER BY id")
    for *fields, stored in found:
        item = Item(*fields)
        if stored != checksum(item):
            raise DamageError(f"the item '{item.id}' does not match its checksum")
        yield item


def checksum(item: Item) -> int:
    """CRC-32 of everything an item says."""
    return zlib.crc32(repr((item.id, item.label, item.path, item.digest)).encode())


def page_of_ids(connection: sqlite3.Connection, after: str | None) -> list[str]:
    """The next ids in order, after `after` (None: from the first); empty at the end."""
    if after is None:
        found = connection.execute("SELECT id FROM items ORDER BY id LIMIT ?", (_PAGE,))
    else:
        found = connection.execute("SELECT id FROM items WHERE id > ? ORDER BY id LIMIT ?", (after, _PAGE))
    return [row[0] for row in found]


def insert(connection: sqlite3.Connection, start: int, items: Iterable[Item]) -> None:
    """Put `items` into the slots from `start` on."""
    connection.executemany(
        "INSERT INTO items (slot, id, label, path, digest, checksum) VALUES (?, ?, ?, ?, ?, ?)",
        (
            (slot, item.id, item.label, item.path, item.digest, checksum(item))
            for slot, item in enumerate(items, start)
        ),
    )


def update(connection: sqlite3.Connection, items: Iterable[tuple[int, Item]]) -> None:
    """Give the items in these slots the label, path and digest of the new ones."""
    connection.executemany(
        "UPDATE items SET label = ?, path = ?, digest = ?, checksum = ? WHERE slot = ?",
        ((item.label, item.path, item.digest, checksum(item), slot) for slot, item in items),
    )


def delete(connection: sqlite3.Connection, slots: Iterable[int]) -> None:
    """Forget the items in `slots`."""
    connection.executemany("DELETE FROM items WHERE slot = ?", ((slot,) for slot in slots))


def move(connection: sqlite3.Connection, pairs: Iterable[tuple[int, int]]) -> None:
    """Move items, each pair from its first slot to its second, which is free."""
    connection.executemany("UPDATE items SET slot = ? WHERE slot = ?", ((to, at) for at, to in pairs))


def _chunks(values: Iterable[T]) -> Iterator[list[T]]:
    rest = iter(values)
    while chunk := list(islice(rest, _CHUNK)):
        yield chunk


def _marks(chunk: Sequence[object]) -> str:
    return ",".join("?" * len(chunk))
