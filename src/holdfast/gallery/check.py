"""Reading a whole gallery and comparing everything in it that is stored twice."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator

import numpy as np

from holdfast.errors import GalleryError
from holdfast.gallery import boxes, items, kept
from holdfast.gallery.boxes import Boxes
from holdfast.gallery.columns import Column, declared, gather, largest_norm
from holdfast.gallery.database import DamageError
from holdfast.gallery.values import Item
from holdfast.gallery.writing import PIECE, VECTOR


def problems(connection: sqlite3.Connection) -> list[str]:
    """One line for each thing that is wrong; none if the gallery is sound.

    Checked: SQLite's own structure, the card, that slots are dense, and per column that all blocks
    are there with the bytes that were written, the right number of rows, finite, with true norms; that
    each box holds its vector and its reach is true; the kept certificates.
    """
    found: list[str] = []
    begun = not connection.in_transaction
    try:
        if begun:
            connection.execute("BEGIN")
        for line in _file_problems(connection):
            found.append(line)
    except (sqlite3.Error, DamageError) as cause:
        found.append(f"cannot be read further: {cause}")
    finally:
        if begun:
            connection.rollback()
    return found


def _file_problems(connection: sqlite3.Connection) -> Iterator[str]:
    for (line,) in connection.execute("PRAGMA integrity_check(10)"):
        if line != "ok":
            yield f"SQLite: {' '.join(str(line).split())}"
    meta = connection.execute("SELECT count, dim, card FROM meta").fetchall()
    if len(meta) != 1:
        yield f"the table meta has {len(meta)} rows, not 1"
        return
    count, dim, card = meta[0]
    try:
        json.loads(card)
    except ValueError:
        yield "the embedder's card is not JSON"
    found, low, high = connection.execute("SELECT count(*), min(slot), max(slot) FROM items").fetchone()
    if found != count:
        yield f"{found} items are listed where meta counts {count}"
    if found and (low, high) != (0, found - 1):
        yield f"{found} items are in slots {low} to {high}, not 0 to {found - 1}"
    rows = connection.execute("SELECT id, label, path, digest, checksum FROM items")
    damaged = [fields[0] for *fields, stored in rows if items.checksum(Item(*fields)) != stored]
    if damaged:
        yield f"{len(damaged)} items do not match their checksum, '{damaged[0]}' among them"
    known = declared(connection)
    if VECTOR not in known or (known[VECTOR].dtype, known[VECTOR].width) != ("<f4", dim):
        yield f"there is no column of vectors with {dim} float32 numbers each"
    for column in known.values():
        yield from _column_problems(connection, column, count)
    unknown = set(connection.execute("SELECT DISTINCT kind FROM blocks")) - {(kind,) for kind in known}
    for (kind,) in sorted(unknown):
        yield f"there are blocks of an unknown column '{kind}'"
    for eps in boxes.sizes(known):
        yield from _box_problems(connection, known, eps, count)
    kept.read(connection)


def _box_problems(
    connection: sqlite3.Connection, known: dict[str, Column], eps: float, count: int
) -> Iterator[str]:
    """Whether the boxes for `eps` are those of the vectors."""
    named = [VECTOR, *(boxes.kind(part, eps) for part in (boxes.CENTRE, boxes.RADIUS, boxes.REACH))]
    missing = [kind for kind in named if kind not in known]
    if missing:
        yield f"boxes for {boxes.named(eps)} lack the column '{missing[0]}'"
        return
    for first in range(0, count, PIECE):
        slots = np.arange(first, min(first + PIECE, count))
        vectors, centre, radius, reach = (gather(connection, known[kind], slots) for kind in named)
        try:
            found = Boxes(centre, radius)
        except GalleryError as cause:
            yield f"boxes for {boxes.named(eps)} in slots {first} to {slots[-1]}: {cause}"
            continue
        if not found.hold(vectors) or (found.reach(vectors) > reach).any():
            yield f"boxes for {boxes.named(eps)} in slots {first} to {slots[-1]} do not fit their vectors"


def _column_problems(connection: sqlite3.Connection, column: Column, count: int) -> Iterator[str]:
    statement = "SELECT block, checksum, max_norm, data FROM blocks WHERE kind = ? ORDER BY block"
    expected = set(range(column.blocks_for(count)))
    for number, checksum, max_norm, data in connection.execute(statement, (column.kind,)):
        name = f"block {number} of column '{column.kind}'"
        if number not in expected:
            yield f"{name} is beyond the last item"
            continue
        expected.discard(number)
        try:
            rows = column.decode(number, checksum, max_norm, data).rows
        except DamageError:
            yield f"{name} is damaged: it does not match its checksum"
            continue
        wanted = min(column.block_rows, count - number * column.block_rows)
        if len(rows) != wanted:
            yield f"{name} has {len(rows)} rows, not {wanted}"
        # Nothing is known of some boxes: their radius, and so their reach, is infinite.
        wrong = np.isnan(rows) if column.kind.startswith((boxes.RADIUS, boxes.REACH)) else ~np.isfinite(rows)
        if wrong.any():
            yield f"{name} has a NaN or infinity"
        elif largest_norm(rows) > max_norm:
            yield f"{name} states a largest norm of {max_norm}, but has {largest_norm(rows)}"
    for number in sorted(expected):
        yield f"block {number} of column '{column.kind}' is missing"
