"""Columns: one fixed-width row of numbers per slot, kept in checksummed blocks.

The vectors of a gallery are the column `vector`, boxes of candidates are others. Every column has a
row for every slot, and a write changes all of them in one transaction. It touches each block once; a
block is read back only if its checksum holds, so damage never passes silently into an answer or a
new block.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.gallery.database import DamageError

Rows = NDArray[Any]

_BLOCK_BYTES = 1 << 19
_DTYPES = ("<f4", "<f8")


@dataclass(frozen=True)
class Block:
    """One block as stored: its rows and the largest Euclidean norm among them."""

    number: int
    rows: Rows
    max_norm: float


@dataclass(frozen=True)
class Mark:
    """What the file says of a block without its rows: which write it is of, its checksum and largest norm."""

    number: int
    generation: int
    checksum: int
    max_norm: float


@dataclass(frozen=True)
class Column:
    """Rows of `width` numbers of `dtype` (little endian), `block_rows` of them in a block."""

    kind: str
    dtype: str
    width: int
    block_rows: int

    def __post_init__(self) -> None:
        if self.dtype not in _DTYPES or self.width < 1 or self.block_rows < 1:
            raise DamageError(f"column '{self.kind}' has {self.width} numbers of '{self.dtype}' per row")

    @classmethod
    def of(cls, kind: str, dtype: str, width: int) -> Column:
        """A new column whose blocks hold about half a MiB (1,024 rows of 128 float32)."""
        return cls(kind, dtype, width, max(1, _BLOCK_BYTES // (np.dtype(dtype).itemsize * width)))

    def blocks_for(self, count: int) -> int:
        return -(-count // self.block_rows)

    def decode(self, number: int, checksum: int, max_norm: float, data: bytes) -> Block:
        """A stored block (its rows read-only); refused if it is not what was written, in its place."""
        row_bytes = np.dtype(self.dtype).itemsize * self.width
        if self.checksum(number, max_norm, data) != checksum or len(data) % row_bytes:
            raise DamageError(f"block {number} of column '{self.kind}' is not what was written")
        return Block(number, np.frombuffer(data, dtype=self.dtype).reshape(-1, self.width), max_norm)

    def matches(self, mark: Mark, rows: Rows) -> bool:
        """Whether these rows are what was written as the block of `mark`."""
        data = np.ascontiguousarray(rows).view(np.uint8).data
        return self.checksum(mark.number, mark.max_norm, data) == mark.checksum

    def checksum(self, number: int, max_norm: float, data: bytes | memoryview) -> int:
        """A CRC-32 over the data, its place and its norm: searches rely on all three."""
        return zlib.crc32(data, zlib.crc32(f"{self.kind} {number} {max_norm!r}".encode()))


def declare(connection: sqlite3.Connection, column: Column) -> None:
    """Add an empty column to the file."""
    values = (column.kind, column.dtype, column.width, column.block_rows)
    connection.execute("INSERT INTO columns (kind, dtype, width, block_rows) VALUES (?, ?, ?, ?)", values)


def declared(connection: sqlite3.Connection) -> dict[str, Column]:
    """All columns of the file, by kind."""
    found = connection.execute("SELECT kind, dtype, width, block_rows FROM columns ORDER BY kind")
    return {row[0]: Column(*row) for row in found}


def changed_since(connection: sqlite3.Connection, column: Column, generation: int) -> Iterator[Block]:
    """The blocks written after `generation`, in order; -1 gives all."""
    found = connection.execute(
        "SELECT block, checksum, max_norm, data FROM blocks WHERE kind = ? AND generation > ? ORDER BY block",
        (column.kind, generation),
    )
    for row in found:
        yield column.decode(*row)


def marks(connection: sqlite3.Connection, column: Column) -> list[Mark]:
    """What the file says of every block of a column, in order."""
    found = connection.execute(
        "SELECT block, generation, checksum, max_norm FROM blocks WHERE kind = ? ORDER BY block",
        (column.kind,),
    )
    return [Mark(*row) for row in found]


def read(connection: sqlite3.Connection, column: Column, number: int) -> Block:
    """One block of a column, which has it."""
    found = _found(connection, column, number)
    if found is None:
        raise DamageError(f"block {number} of column '{column.kind}' is missing")
    return found


def gather(connection: sqlite3.Connection, column: Column, slots: NDArray[np.int64]) -> Rows:
    """The rows at `slots`, in that order; each block is read once."""
    out = np.empty((len(slots), column.width), dtype=column.dtype)
    for number, where in _by_block(column, slots):
        rows = _read(connection, column, number)
        offsets = slots[where] - number * column.block_rows
        if len(offsets) and offsets.max() >= len(rows):
            raise DamageError(f"block {number} of column '{column.kind}' is too short")
        out[where] = rows[offsets]
    return out


def scatter(
    connection: sqlite3.Connection, column: Column, slots: NDArray[np.int64], rows: Rows, generation: int
) -> None:
    """Write `rows` at `slots`, which are old slots or follow on the last one without a gap."""
    for number, where in _by_block(column, slots):
        old = _read(connection, column, number)
        offsets = slots[where] - number * column.block_rows
        new = np.zeros((max(len(old), int(offsets.max()) + 1), column.width), dtype=column.dtype)
        new[: len(old)] = old
        new[offsets] = rows[where]
        _write(connection, column, number, new, generation)


def shrink(connection: sqlite3.Connection, column: Column, count: int, generation: int) -> None:
    """Keep the first `count` rows."""
    blocks = column.blocks_for(count)
    connection.execute("DELETE FROM blocks WHERE kind = ? AND block >= ?", (column.kind, blocks))
    kept = count - (blocks - 1) * column.block_rows
    if blocks and kept < len(last := _read(connection, column, blocks - 1)):
        _write(connection, column, blocks - 1, last[:kept], generation)


def largest_norm(rows: Rows) -> float:
    """The largest Euclidean norm among `rows`, not below the true one by more than float64's rounding."""
    return float(np.sqrt(np.square(rows, dtype=np.float64).sum(axis=1).max(initial=0.0)))


def _by_block(column: Column, slots: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Each touched block with the positions in `slots` that lie in it."""
    if not len(slots):
        return
    numbers = slots // column.block_rows
    order = np.argsort(numbers, kind="stable")
    touched, starts = np.unique(numbers[order], return_index=True)
    for number, where in zip(touched, np.split(order, starts[1:]), strict=True):
        yield int(number), where


def _read(connection: sqlite3.Connection, column: Column, number: int) -> Rows:
    found = _found(connection, column, number)
    return np.empty((0, column.width), dtype=column.dtype) if found is None else found.rows


def _found(connection: sqlite3.Connection, column: Column, number: int) -> Block | None:
    found = connection.execute(
        "SELECT block, checksum, max_norm, data FROM blocks WHERE kind = ? AND block = ?",
        (column.kind, number),
    ).fetchone()
    return None if found is None else column.decode(*found)


def _write(connection: sqlite3.Connection, column: Column, number: int, rows: Rows, generation: int) -> None:
    data = rows.tobytes()
    max_norm = largest_norm(rows)
    connection.execute(
        "INSERT OR REPLACE INTO blocks (kind, block, generation, checksum, max_norm, data)"
        " VALUES (?, ?, ?, ?, ?, ?)",
        (column.kind, number, generation, column.checksum(number, max_norm, data), max_norm, data),
    )
