"""A mapped copy of a gallery's columns, in a folder beside it: a cache, never the truth.

Guarantee: no number of a cache enters an answer before the CRC-32 of its block has been compared, in this
process, with the checksum that the SQLite file holds for that block in the very state being read. It is the
comparison that a block read from SQLite goes through. A cache that is stale, torn, cut short, altered, or of
another gallery therefore changes how long an answer takes, never the answer. That matters most to certificates:
one wrong bit in a vector or a box could turn an open hit into a "certified" one.

What it does not cover: after the comparison the system may drop a page of a mapped file and read it again; a
disk that then returns other bytes without an error is not noticed, and a file that someone else shortens meanwhile
ends the process. CRC-32 tells accidents, not adversaries: who may write beside a gallery may write the gallery.

A file is written whole under another name, put in place by a rename, and never changed: whoever has mapped the
old one goes on with it. It has room for more rows than it holds, so that a mapping can grow with the gallery;
the room is a hole in the file and takes no disk.
"""

from __future__ import annotations

import json
import mmap
import os
import sqlite3
import stat
import weakref
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.errors import RunError, StorageError
from holdfast.files import atomic_path, exclusive
from holdfast.gallery.exact import Floats
from holdfast.gallery.stores.sqlite import columns, meta
from holdfast.gallery.stores.sqlite.columns import Column, Mark
from holdfast.gallery.stores.sqlite.meta import Meta
from holdfast.progress import bar

AUTOMATIC = 1 << 27
"""Bytes of vectors from which on indexing writes a cache by itself: 262,144 × 128."""

STALE = 8
"""A cache of which less than one block in so many has changed is good enough: the rest is read from the gallery."""

_MAGIC = b"HOLDFAST CACHE 1"
_FIXED = len(_MAGIC) + 12
_PAGE = 4096


class Cached:
    """The cache file of one column: which blocks it holds, as of which write; to be mapped any number of times."""

    def __init__(self, handle: int, column: Column, header: dict[str, Any], offset: int) -> None:
        self._handle = handle
        weakref.finalize(self, os.close, handle)
        self._offset = offset
        self._width = column.width
        self.count: int = header["count"]
        self.room: int = header["room"]
        self.blocks: dict[int, tuple[int, int]] = {
            number: (generation, checksum) for number, generation, checksum in header["blocks"]
        }
        """By number: the generation that wrote the block, and its checksum in the gallery."""

    def map(self) -> Floats:
        """All rows and the room after them; what is written to them stays in this process."""
        size = self._offset + 4 * self._width * self.room
        mapped = mmap.mmap(self._handle, size, access=mmap.ACCESS_COPY)
        found = np.frombuffer(mapped, dtype="<f4", count=self._width * self.room, offset=self._offset)
        return found.reshape(self.room, self._width)

    def holds(self, mark: Mark) -> bool:
        """Whether it says that it has this block as the gallery has it; to be compared before it is used."""
        return self.blocks.get(mark.number) == (mark.generation, mark.checksum)


@dataclass(frozen=True)
class Written:
    """What writing a cache did: of how many blocks, how many were read from the gallery; bytes on the disk."""

    blocks: int = 0
    read: int = 0
    bytes: int = 0


def folder_of(path: Path) -> Path:
    """Where the cache of the gallery at `path` is."""
    return path.with_name(path.name + "-cache")


def load(path: Path, uid: str, column: Column) -> Cached | None:
    """The cache of a column of the gallery at `path`; None where there is none that can be used."""
    try:
        handle = os.open(_file(path, column), os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    except OSError:
        return None
    try:
        found = _header(handle, column, uid)
    except (OSError, ValueError, KeyError, TypeError):
        found = None
    if found is None:
        os.close(handle)
        return None
    return Cached(handle, column, *found)


@dataclass(frozen=True)
class _Plan:
    """One column: what the gallery has, and the cache as it is, without the blocks that are of no use."""

    column: Column
    marks: list[Mark]
    rows: Floats
    """Of the old cache; none where there is none."""
    useful: set[int]
    count: int
    """Of rows in the old cache; -1 where there is none."""

    @property
    def stale(self) -> int:
        return len(self.marks) - len(self.useful)


def write(path: Path, connection: sqlite3.Connection, state: Meta, *, only_if_stale: bool = False) -> Written:
    """Write what the cache has not, or not as the gallery has it; inside a read transaction.

    Blocks that the old cache has, and that hold their checksum, are taken from it. With `only_if_stale` the
    cache is left alone as long as little has changed.
    """
    folder = folder_of(path)
    with exclusive(folder, "its cache is being written"):
        count = state.count
        wanted = [column for column in state.columns.values() if column.dtype == "<f4"]
        plans = [_plan(path, connection, state, column) for column in wanted]
        blocks, stale = sum(len(plan.marks) for plan in plans), sum(plan.stale for plan in plans)
        todo = [plan for plan in plans if plan.stale or plan.count != count]
        if only_if_stale and stale * STALE < blocks:
            todo = [plan for plan in plans if plan.count < 0]
        for plan in todo:
            _write_column(path, connection, state.uid, plan, count)
    size = sum(file.stat().st_blocks * 512 for file in folder.iterdir())
    return Written(blocks, sum(plan.stale for plan in todo), size)


def _plan(path: Path, connection: sqlite3.Connection, state: Meta, column: Column) -> _Plan:
    marks = columns.marks(connection, column, state.roots.get(column.kind))
    old = load(path, state.uid, column)
    if old is None:
        return _Plan(column, marks, np.empty((0, column.width), dtype=np.float32), set(), -1)
    rows = old.map()
    useful = {
        mark.number
        for mark in marks
        if old.holds(mark) and column.matches(mark, _rows_of(rows, column, mark.number, state.count))
    }
    return _Plan(column, marks, rows, useful, old.count)


def discard(path: Path) -> None:
    """Remove the cache of the gallery at `path`, and nothing that is not one."""
    folder = folder_of(path)
    with suppress(OSError, RunError, StorageError):
        if not folder.is_dir():
            return
        with exclusive(folder, "its cache is being written"):
            for file in folder.glob("*.f4"):
                with open(file, "rb") as handle:
                    ours = handle.read(len(_MAGIC)) == _MAGIC
                if ours:
                    file.unlink()
        (folder / ".lock").unlink()
        folder.rmdir()


def problems(path: Path, connection: sqlite3.Connection) -> Iterator[str]:
    """One line for each column whose cache says of a block that it is the gallery's, and has other bytes."""
    state = meta.read(connection)
    for column in state.columns.values():
        old = load(path, state.uid, column) if column.dtype == "<f4" else None
        if old is None:
            continue
        rows = old.map()
        wrong = [
            mark.number
            for mark in columns.marks(connection, column, state.roots.get(column.kind))
            if old.holds(mark) and not column.matches(mark, _rows_of(rows, column, mark.number, state.count))
        ]
        if wrong:
            yield (
                f"the cache of column '{column.kind}' is damaged in block {wrong[0]}; searches read the gallery "
                "instead; write it again with 'holdfast gallery cache'"
            )


def _rows_of(rows: Floats, column: Column, number: int, count: int) -> Floats:
    first = number * column.block_rows
    return rows[first : min(first + column.block_rows, count)]


def _file(path: Path, column: Column) -> Path:
    return folder_of(path) / f"{column.kind.replace(' ', '-').replace(':', '-')}.f4"


def _header(handle: int, column: Column, uid: str) -> tuple[dict[str, Any], int] | None:
    """What a cache file says of itself and where its rows begin; None if it is not whole, or not of this column."""
    fixed = os.pread(handle, _FIXED, 0)
    length, checksum = int.from_bytes(fixed[-12:-4], "little"), int.from_bytes(fixed[-4:], "little")
    size = os.fstat(handle)
    if fixed[: len(_MAGIC)] != _MAGIC or not stat.S_ISREG(size.st_mode) or length > size.st_size:
        return None
    text = os.pread(handle, length, _FIXED)
    if zlib.crc32(text) != checksum:
        return None
    header = json.loads(text)
    offset = _aligned(_FIXED + length)
    described = (header["uid"], header["kind"], header["width"], header["block_rows"])
    if described != (uid, column.kind, column.width, column.block_rows):
        return None
    if size.st_size != offset + 4 * column.width * header["room"] or header["count"] > header["room"]:
        return None
    return header, offset


def _aligned(size: int) -> int:
    return -(-size // _PAGE) * _PAGE


def _write_column(path: Path, connection: sqlite3.Connection, uid: str, plan: _Plan, count: int) -> None:
    """Write the file of one column."""
    column = plan.column
    room = count + max(count // 4, column.block_rows)
    header = {
        "uid": uid,
        "kind": column.kind,
        "width": column.width,
        "block_rows": column.block_rows,
        "count": count,
        "room": room,
        "blocks": [(mark.number, mark.generation, mark.checksum) for mark in plan.marks],
    }
    text = json.dumps(header).encode()
    offset = _aligned(_FIXED + len(text))
    fixed = _MAGIC + len(text).to_bytes(8, "little") + zlib.crc32(text).to_bytes(4, "little")
    with (
        atomic_path(_file(path, column)) as temporary,
        open(temporary, "wb") as handle,
        bar(f"cache of {column.kind}", len(plan.marks)) as advance,
    ):
        handle.write(fixed + text)
        for mark in plan.marks:
            if mark.number in plan.useful:
                rows = _rows_of(plan.rows, column, mark.number, count)
            else:
                rows = columns.read(connection, column, mark).rows
            handle.seek(offset + 4 * column.width * column.block_rows * mark.number)
            handle.write(np.ascontiguousarray(rows).data)
            advance(1)
        handle.truncate(offset + 4 * column.width * room)
