"""Reading a whole gallery and comparing everything in it that is stored twice."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import numpy as np

from holdfast.errors import GalleryError
from holdfast.gallery import boxes
from holdfast.gallery.boxes import Boxes
from holdfast.gallery.exact import largest_norm
from holdfast.gallery.stores.base import PIECE, VECTOR
from holdfast.gallery.stores.sqlite import certificates, items, meta
from holdfast.gallery.stores.sqlite.checksums import root_of
from holdfast.gallery.stores.sqlite.columns import Column, Mark, gather
from holdfast.gallery.stores.sqlite.database import FAULTS, DamageError, plain
from holdfast.gallery.stores.sqlite.meta import Meta


def problems(connection: sqlite3.Connection) -> list[str]:
    """One line for each thing that is wrong; none if the gallery is sound.

    Checked: SQLite's own structure, what the gallery says of itself, that slots are dense, and per column that
    all blocks are there with the bytes that were written, the right number of rows, finite, with true norms;
    that each item is bound to its slot and vector and found by its id, that each box holds its vector and its
    reach is true; the kept certificates.
    """
    found: list[str] = []
    begun = not connection.in_transaction
    try:
        if begun:
            connection.execute("BEGIN")
        for line in _file_problems(connection):
            found.append(line)
    except FAULTS as cause:
        found.append(f"cannot be read further: {plain(cause)}")
    finally:
        if begun:
            connection.rollback()
    return found


def _file_problems(connection: sqlite3.Connection) -> Iterator[str]:
    for (line,) in connection.execute("PRAGMA integrity_check(10)"):
        if line != "ok":
            yield f"SQLite: {' '.join(str(line).split())}"
    state = meta.read(connection)
    count = state.count
    found, low, high = connection.execute("SELECT count(*), min(slot), max(slot) FROM items").fetchone()
    if found != count:
        yield f"{found} items are listed where meta counts {count}"
    if found and (low, high) != (0, found - 1):
        yield f"{found} items are in slots {low} to {high}, not 0 to {found - 1}"
    if found != count:
        return
    for column in state.columns.values():
        yield from _column_problems(connection, column, state)
    unknown = set(connection.execute("SELECT DISTINCT kind FROM blocks")) - {
        (kind,) for kind in state.columns
    }
    for (kind,) in sorted(unknown, key=repr):
        yield f"there are blocks of an unknown column {kind!r}"
    for eps in state.boxes:
        yield from _box_problems(connection, state, eps)
    yield from _item_problems(connection, state)
    certificates.read(connection, state)


def _item_problems(connection: sqlite3.Connection, state: Meta) -> Iterator[str]:
    """Whether every item is what was written, with the vector in its slot, and found by its id."""
    vectors = (lambda slots: gather(connection, state.vector, slots)) if state.bound else None
    for _ in items.by_id(connection, state.count, vectors, state.items):
        pass
    if state.bound:
        rows = connection.execute("SELECT id, key FROM items")
        lost = [id for id, key in rows if key != items.key(id)]
        if lost:
            yield f"{len(lost)} items are not found by their second index, '{lost[0]}' among them"


def _box_problems(connection: sqlite3.Connection, state: Meta, eps: float) -> Iterator[str]:
    """Whether the boxes for `eps` are those of the vectors."""
    known, count = state.columns, state.count
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


def _column_problems(connection: sqlite3.Connection, column: Column, state: Meta) -> Iterator[str]:
    statement = "SELECT block, generation, checksum, max_norm, data FROM blocks WHERE kind = ? ORDER BY block"
    count = state.count
    expected, parts = set(range(column.blocks_for(count))), []
    for *said, data in connection.execute(statement, (column.kind,)):
        mark = Mark(*said)
        number, max_norm = mark.number, mark.max_norm
        name = f"block {number} of column '{column.kind}'"
        parts.append(mark.part(column.kind))
        if number not in expected:
            yield f"{name} is beyond the last item"
            continue
        expected.discard(number)
        try:
            rows = column.decode(mark, data).rows
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
    if state.bound and root_of(parts) != state.roots[column.kind]:
        yield f"the blocks of column '{column.kind}' are not those of the last write"
