"""The tables `meta` and `columns`: what a gallery says of itself, under one checksum.

That checksum covers which gallery this is, its embedder, its state, its columns, and a root for each column, for
the items and for the kept certificates. A root is made of the checksums of all its parts, and brought up to date by
the write that changes one. So a block that is sound by itself but of another state, as a lost write leaves it, is
noticed. What checksums are worth is said in `gallery.checksums`.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from holdfast.gallery import boxes
from holdfast.gallery.stores.sqlite import checksums, database
from holdfast.gallery.stores.sqlite.columns import Column
from holdfast.gallery.stores.sqlite.database import DamageError, typed
from holdfast.gallery.values import EmbedderInfo

_SAID = ("uid", "dim", "count", "generation", "fingerprint", "card", "location", "created")
_COLUMN = ("kind", "dtype", "width", "block_rows")


@dataclass(frozen=True)
class Meta:
    """What a gallery says of itself in one committed state."""

    uid: str
    dim: int
    count: int
    generation: int
    fingerprint: str
    card: str
    location: str | None
    created: str
    columns: Mapping[str, Column]
    roots: Mapping[str, int] = field(default_factory=dict)
    """Of each column; none in a file of before."""
    items: int = 0
    """The root of the items."""
    kept: int = 0
    """The root of the kept certificates."""
    bound: bool = True
    """Whether everything in the file is bound to this row; a file of before has only checksums of its parts."""

    @property
    def vector(self) -> Column:
        """The column of the vectors."""
        return self.columns["vector"]

    @property
    def boxes(self) -> tuple[float, ...]:
        """For which eps there are boxes, smallest first."""
        return sizes(self.columns)

    @property
    def embedder(self) -> EmbedderInfo:
        return EmbedderInfo(self.fingerprint, json.loads(self.card), self.location)

    @property
    def checksum(self) -> int:
        """CRC-32 over everything that is said here, types included."""
        said = tuple(getattr(self, name) for name in _SAID)
        rows = [(c.kind, c.dtype, c.width, c.block_rows, self.roots[c.kind]) for c in _sorted(self.columns)]
        return checksums.checksum(said, self.items, self.kept, rows)

    def moved_on(self, count: int, roots: Mapping[str, int], items: int = 0, **changes: Any) -> Meta:
        """The next state: `roots` and `items` say by how much the roots of columns and items changed."""
        new = {kind: self.roots.get(kind, 0) ^ roots.get(kind, 0) for kind in self.columns}
        return replace(
            self,
            count=count,
            generation=self.generation + 1,
            roots=new,
            items=self.items ^ items,
            **changes,
        )


def read(connection: sqlite3.Connection) -> Meta:
    """The state that the transaction of `connection` sees; refused if it is not what was written.

    Outside a transaction it has one of its own: another process may commit between two of its reads.
    """
    if connection.in_transaction:
        return _read(connection)
    connection.execute("BEGIN")
    try:
        return _read(connection)
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _read(connection: sqlite3.Connection) -> Meta:
    found = connection.execute("SELECT * FROM meta")
    names = tuple(column[0] for column in found.description)
    rows = found.fetchall()
    if len(rows) != 1:
        raise DamageError(f"its table meta has {len(rows)} rows, not 1")
    columns = connection.execute("SELECT * FROM columns ORDER BY kind")
    listed = tuple(column[0] for column in columns.description)
    return _decoded(names, rows[0], listed, tuple(columns))


def check_version(connection: sqlite3.Connection) -> None:
    """Refuse a file whose version says one thing of its tables, and they another."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    names = [row[1] for row in connection.execute("PRAGMA table_info(meta)")]
    if ("checksum" in names) != (version >= database.BOUND):
        raise DamageError("its version and its tables contradict each other")


@lru_cache(maxsize=16)
def _decoded(
    names: tuple[str, ...],
    row: tuple[Any, ...],
    listed: tuple[str, ...],
    rows: tuple[tuple[Any, ...], ...],
) -> Meta:
    """The state that these rows of `meta` and `columns` say; the same rows are decoded and compared once."""
    found = dict(zip(names, row, strict=True))
    bound = "checksum" in found
    if any(name not in found for name in _SAID):
        raise DamageError("its table meta lacks a column")
    said = {name: found[name] for name in _SAID}
    typed("its table meta", [*said.values()], str, int, int, int, str, str, (str, type(None)), str)
    own = {name: found.get(name, 0) for name in ("items", "kept")}
    typed("its table meta", [*own.values()], int, int)
    if listed != (*_COLUMN, "root")[: 4 + bound]:
        raise DamageError("its table columns has other columns")
    for one in rows:
        typed("its table columns", one, *(str, str, int, int, int)[: len(one)])
    columns = {one[0]: Column(*one[:4]) for one in rows}
    roots = {one[0]: one[4] for one in rows} if bound else {}
    meta = Meta(**said, columns=columns, roots=roots, **own, bound=bound)
    if not bound:
        _check(meta)
    elif meta.checksum != found["checksum"]:
        raise DamageError("what it says of itself does not match its checksum")
    return meta


def write(connection: sqlite3.Connection, meta: Meta) -> None:
    """Put down a state with its checksum, in place of the one there; the columns themselves are declared already."""
    connection.executemany(
        "UPDATE columns SET root = ? WHERE kind = ?", ((r, k) for k, r in meta.roots.items())
    )
    connection.execute("DELETE FROM meta")
    connection.execute(
        f"INSERT INTO meta (one, {', '.join(_SAID)}, items, kept, checksum) VALUES (1{', ?' * (len(_SAID) + 3)})",
        (*(getattr(meta, name) for name in _SAID), meta.items, meta.kept, meta.checksum),
    )


def declare(connection: sqlite3.Connection, meta: Meta, column: Column) -> Meta:
    """Add an empty column to the file; gives what is to be put down, with other changes, by `write`."""
    values = (column.kind, column.dtype, column.width, column.block_rows)
    connection.execute(
        "INSERT INTO columns (kind, dtype, width, block_rows, root) VALUES (?, ?, ?, ?, 0)", values
    )
    return replace(meta, columns={**meta.columns, column.kind: column}, roots={**meta.roots, column.kind: 0})


def drop(connection: sqlite3.Connection, meta: Meta, kinds: Iterable[str]) -> Meta:
    """Take columns away with all their blocks; gives what is to be put down by `write`."""
    gone = set(kinds)
    for kind in gone:
        connection.execute("DELETE FROM blocks WHERE kind = ?", (kind,))
        connection.execute("DELETE FROM columns WHERE kind = ?", (kind,))
    left = {kind: column for kind, column in meta.columns.items() if kind not in gone}
    return replace(meta, columns=left, roots={kind: meta.roots[kind] for kind in left})


def _check(meta: Meta) -> None:
    """Refuse what no sound gallery says, in a file of before, which has no checksum of it."""
    vector = meta.columns.get("vector")
    if vector is None or (vector.dtype, vector.width) != ("<f4", meta.dim):
        raise DamageError(f"there is no column of vectors with {meta.dim} float32 numbers each")
    if meta.count < 0 or meta.generation < 0:
        raise DamageError(f"it counts {meta.count} items after {meta.generation} writes")
    sizes(meta.columns)
    try:
        card = json.loads(meta.card)
    except ValueError:
        card = None
    if not isinstance(card, dict):
        raise DamageError("the embedder's card is not JSON")
    if not meta.fingerprint:
        raise DamageError("the embedder has no fingerprint")


def _sorted(columns: Mapping[str, Column]) -> list[Column]:
    return [columns[kind] for kind in sorted(columns)]


def columns_for(eps: float, dim: int) -> list[Column]:
    """The columns that boxes for `eps` take."""
    return [
        Column.of(boxes.kind(part, eps), "<f4", 1 if part == boxes.REACH else dim)
        for part in (boxes.CENTRE, boxes.RADIUS, boxes.REACH)
    ]


def sizes(kinds: Iterable[str]) -> tuple[float, ...]:
    """For which eps there are boxes, smallest first, told from the names of the columns."""
    found = (re.fullmatch(rf"{boxes.REACH} linf:(\S+)", name) for name in kinds)
    try:
        eps = sorted(float(match[1]) for match in found if match)
    except ValueError as cause:
        raise DamageError(f"it has boxes of an unknown size ({cause})") from cause
    if not all(0 <= one <= 1 for one in eps):
        raise DamageError(f"it has boxes of an unknown size ({eps})")
    return tuple(eps)
