"""Columns: one fixed-width row of numbers per slot, kept in checksummed blocks.

The vectors of a gallery are the column `vector`, boxes of candidates are others. Every column has a
row for every slot, and a write changes all of them in one transaction. It touches each block once; a
block is read back only if its checksum holds, so damage never passes silently into an answer or a
new block. The root of a column (`gallery.meta`) says which blocks belong to a state: reads compare it, and
writes say by how much they change it.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.gallery.exact import largest_norm
from holdfast.gallery.stores.sqlite.checksums import part_hash, root_of
from holdfast.gallery.stores.sqlite.database import DamageError, typed

Rows = NDArray[Any]

_BLOCK_BYTES = 1 << 19
_DTYPES = ("<f4", "<f8")
_BLOCK = "SELECT block, generation, checksum, max_norm, data FROM blocks WHERE kind = ?"


@dataclass(frozen=True)
class Mark:
    """What the file says of a block without its rows: which write it is of, its checksum and largest norm."""

    number: int
    generation: int
    checksum: int
    max_norm: float

    def __post_init__(self) -> None:
        said = (self.number, self.generation, self.checksum, self.max_norm)
        typed("the table of blocks", said, int, int, int, float)
        if self.number < 0:
            raise DamageError(f"there is a block of number {self.number}")

    def part(self, kind: str) -> int:
        """What this block adds to the root of its column."""
        return part_hash(kind, self.number, self.generation, self.checksum)


@dataclass(frozen=True)
class Block:
    """One block as stored: its mark and its rows."""

    mark: Mark
    rows: Rows

    @property
    def number(self) -> int:
        return self.mark.number

    @property
    def max_norm(self) -> float:
        """The largest Euclidean norm among the rows."""
        return self.mark.max_norm


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

    def decode(self, mark: Mark, data: object) -> Block:
        """A stored block (its rows read-only); refused if it is not what was written, in its place."""
        row_bytes = np.dtype(self.dtype).itemsize * self.width
        if (
            not isinstance(data, bytes)
            or self.checksum(mark.number, mark.max_norm, data) != mark.checksum
            or len(data) % row_bytes
        ):
            raise DamageError(f"block {mark.number} of column '{self.kind}' is not what was written")
        return Block(mark, np.frombuffer(data, dtype=self.dtype).reshape(-1, self.width))

    def matches(self, mark: Mark, rows: Rows) -> bool:
        """Whether these rows are what was written as the block of `mark`."""
        data = np.ascontiguousarray(rows).view(np.uint8).data
        return self.checksum(mark.number, mark.max_norm, data) == mark.checksum

    def checksum(self, number: int, max_norm: float, data: bytes | memoryview) -> int:
        """A CRC-32 over the data, its place and its norm: searches rely on all three."""
        return zlib.crc32(data, zlib.crc32(f"{self.kind} {number} {max_norm!r}".encode()))


def marks(connection: sqlite3.Connection, column: Column, root: int | None) -> list[Mark]:
    """What the file says of every block of a column, in order; refused if it is not what `root` says."""
    found = connection.execute(
        "SELECT block, generation, checksum, max_norm FROM blocks WHERE kind = ? ORDER BY block",
        (column.kind,),
    )
    marks = [Mark(*row) for row in found]
    _check_root(column, [mark.part(column.kind) for mark in marks], root)
    return marks


def _check_root(column: Column, parts: Sequence[int], root: int | None) -> None:
    if root is not None and root_of(parts) != root:
        raise DamageError(f"the blocks of column '{column.kind}' are not those of the last write")


def read(connection: sqlite3.Connection, column: Column, mark: Mark) -> Block:
    """The block of a column that has this mark."""
    return column.decode(mark, data(connection, column, mark))


def data(connection: sqlite3.Connection, column: Column, mark: Mark) -> object:
    """The stored bytes of the block that has this mark, not yet compared with its checksum."""
    found = connection.execute(f"{_BLOCK} AND block = ?", (column.kind, mark.number)).fetchone()
    if found is None:
        raise DamageError(f"block {mark.number} of column '{column.kind}' is missing")
    if Mark(*found[:-1]) != mark:
        raise DamageError(f"block {mark.number} of column '{column.kind}' is there in two states")
    return found[-1]


def gather(
    connection: sqlite3.Connection,
    column: Column,
    slots: NDArray[np.int64],
    marks: Sequence[Mark] | None = None,
) -> Rows:
    """The rows at `slots`, in that order; each block is read once, and has the mark given for it.

    Without `marks` a block vouches only for itself: for a write, which brings what is wrong to the next read.
    """
    out = np.empty((len(slots), column.width), dtype=column.dtype)
    for number, where in _by_block(column, slots):
        if marks is None:
            rows = _read(connection, column, number)
        elif number < len(marks):
            rows = read(connection, column, marks[number]).rows
        else:
            raise DamageError(f"block {number} of column '{column.kind}' is missing")
        offsets = slots[where] - number * column.block_rows
        if len(offsets) and offsets.max() >= len(rows):
            raise DamageError(f"block {number} of column '{column.kind}' is too short")
        out[where] = rows[offsets]
    return out


def scatter(
    connection: sqlite3.Connection, column: Column, slots: NDArray[np.int64], rows: Rows, generation: int
) -> int:
    """Write `rows` at `slots`, which are old slots or follow on the last one without a gap.

    Gives by how much the root of the column changes.
    """
    change = 0
    for number, where in _by_block(column, slots):
        found = _found(connection, column, number)
        old = np.empty((0, column.width), dtype=column.dtype) if found is None else found.rows
        offsets = slots[where] - number * column.block_rows
        new = np.zeros((max(len(old), int(offsets.max()) + 1), column.width), dtype=column.dtype)
        new[: len(old)] = old
        new[offsets] = rows[where]
        change ^= _write(connection, column, number, new, generation)
        change ^= 0 if found is None else found.mark.part(column.kind)
    return change


def shrink(connection: sqlite3.Connection, column: Column, count: int, generation: int) -> int:
    """Keep the first `count` rows; gives by how much the root of the column changes."""
    wanted = column.blocks_for(count)
    found = connection.execute(
        "SELECT block, generation, checksum, max_norm FROM blocks WHERE kind = ? AND block >= ?",
        (column.kind, wanted),
    )
    change = root_of(Mark(*row).part(column.kind) for row in found)
    connection.execute("DELETE FROM blocks WHERE kind = ? AND block >= ?", (column.kind, wanted))
    kept = count - (wanted - 1) * column.block_rows
    if wanted and (last := _found(connection, column, wanted - 1)) is not None and kept < len(last.rows):
        change ^= last.mark.part(column.kind)
        change ^= _write(connection, column, wanted - 1, last.rows[:kept], generation)
    return change


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
    found = connection.execute(f"{_BLOCK} AND block = ?", (column.kind, number)).fetchone()
    return None if found is None else column.decode(Mark(*found[:-1]), found[-1])


def _write(connection: sqlite3.Connection, column: Column, number: int, rows: Rows, generation: int) -> int:
    """Write one block, and say what it adds to the root of its column."""
    data = rows.tobytes()
    max_norm = largest_norm(rows)
    mark = Mark(number, generation, column.checksum(number, max_norm, data), max_norm)
    connection.execute(
        "INSERT OR REPLACE INTO blocks (kind, block, generation, checksum, max_norm, data)"
        " VALUES (?, ?, ?, ?, ?, ?)",
        (column.kind, number, generation, mark.checksum, max_norm, data),
    )
    return mark.part(column.kind)
