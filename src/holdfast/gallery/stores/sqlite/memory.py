"""A column of a gallery in one piece of memory, following the file."""

from __future__ import annotations

import copy
import os
import sqlite3
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np

from holdfast.gallery.exact import Floats, Slots
from holdfast.gallery.stores.sqlite import columns
from holdfast.gallery.stores.sqlite.cache import Cached
from holdfast.gallery.stores.sqlite.columns import Column, Mark
from holdfast.gallery.stores.sqlite.database import DamageError

A = TypeVar("A")
B = TypeVar("B")

_THREADS = 4
_MANY = 32
"""Blocks from which on comparing checksums is worth threads."""


class Memory:
    """A copy of a float32 column that re-reads only the blocks changed since it last looked.

    With a cache it begins as a private mapping of it. A block of the cache that claims to be what the gallery
    has is `pending` until its checksum has been compared: `check` does that, and reads the gallery's where they
    differ. Rows are only to be used once they are checked.
    """

    def __init__(self, column: Column, cached: Cached | None = None) -> None:
        self._column = column
        self._rows: Floats = np.empty((0, column.width), dtype=np.float32)
        if cached is not None:
            try:
                self._rows = cached.map()
            except (ValueError, OSError):  # cut short since it was loaded
                cached = None
        self._cached = cached
        self._norms = np.zeros(column.blocks_for(len(self._rows)), dtype=np.float64)
        self._count = 0
        self._generation = -1
        self._known: dict[int, Mark] = {}  # what the blocks in memory are
        self._pending: dict[int, Mark] = {}
        self._own: set[int] = set()  # blocks that are not as in the cache
        self._shared = False
        self.mapped = cached is not None
        """Whether the rows are a mapping of the cache, and not memory of this process alone."""

    @property
    def rows(self) -> Floats:
        """The row of each slot, contiguous; valid until the next `follow`."""
        return self._rows[: self._count]

    @property
    def max_norm(self) -> float:
        """At least the norm of each row."""
        return float(self._norms[: self._column.blocks_for(self._count)].max(initial=0.0))

    def fork(self) -> Memory:
        """Another memory in the same state; from now on neither changes what the other shows."""
        other = copy.copy(self)
        other._norms, other._known = self._norms.copy(), self._known.copy()
        other._pending, other._own = self._pending.copy(), self._own.copy()
        self._shared = other._shared = True
        return other

    def follow(self, connection: sqlite3.Connection, count: int, generation: int, root: int | None) -> None:
        """Bring memory to the state of the file, whose meta says `count`, `generation` and the column's `root`."""
        if generation == self._generation:
            return
        column = self._column
        marks = columns.marks(connection, column, root)
        wanted = column.blocks_for(count)
        if len(marks) != wanted or any(mark.number != number for number, mark in enumerate(marks)):
            raise DamageError(
                f"{count} items, but column '{column.kind}' has {len(marks)} of {wanted} blocks"
            )
        if count > len(self._rows):
            self._grow(count)
        self._read(connection, self._differing(marks), count)
        self._pending = {n: mark for n, mark in self._pending.items() if n < wanted}
        self._known = {n: mark for n, mark in self._known.items() if n < wanted}
        self._count, self._generation = count, generation

    def check(self, connection: sqlite3.Connection, slots: Slots | None = None) -> None:
        """Compare the pending blocks of these slots (None: all) with their checksums, before they are used.

        The transaction of `connection` is one of the state that this memory follows.
        """
        if not self._pending:
            return
        wanted = set(self._pending)
        if slots is not None:
            wanted &= set(np.unique(slots // self._column.block_rows).tolist())
        marks = [self._pending[number] for number in sorted(wanted)]
        sound = in_threads(self._sound, marks)
        self._read(
            connection, [mark for mark, right in zip(marks, sound, strict=True) if not right], self._count
        )
        for mark in marks:
            self._pending.pop(mark.number, None)

    def _differing(self, marks: list[Mark]) -> list[Mark]:
        """The blocks that are not in memory as the gallery has them; those that only the cache has become pending."""
        differing = []
        for mark in marks:
            if self._known.get(mark.number) == mark:
                continue
            if self._generation < 0 and self._cached is not None and self._cached.holds(mark):
                self._pending[mark.number] = self._known[mark.number] = mark
                self._norms[mark.number] = mark.max_norm
            else:
                differing.append(mark)
        return differing

    def _read(self, connection: sqlite3.Connection, marks: list[Mark], count: int) -> None:
        """Bring these blocks of the gallery to memory: one is read while others are compared with their checksums."""
        if marks and self._shared:
            self._separate()
        column, one_at_a_time = self._column, threading.Lock()

        def read(mark: Mark) -> None:
            with one_at_a_time:
                data = columns.data(connection, column, mark)
            rows = column.decode(mark, data).rows
            start, stop = self._place(mark.number, count)
            if len(rows) != stop - start:
                raise DamageError(
                    f"{count} items, but column '{column.kind}' has rows {start} to {start + len(rows)}"
                )
            self._rows[start:stop] = rows
            self._norms[mark.number] = mark.max_norm
            self._known[mark.number] = mark
            self._own.add(mark.number)
            self._pending.pop(mark.number, None)

        in_threads(read, marks)

    def _sound(self, mark: Mark) -> bool:
        """Whether the rows of a block in memory match its checksum."""
        start, stop = self._place(mark.number, self._count)
        return self._column.matches(mark, self._rows[start:stop])

    def _place(self, number: int, count: int) -> tuple[int, int]:
        """The rows of a block: from the first to before the last."""
        start = number * self._column.block_rows
        return start, max(start, min(start + self._column.block_rows, count))

    def _separate(self) -> None:
        """Rows that no other memory shows; of a mapping only those that are not as in the cache are copied."""
        if self._cached is None or not self.mapped:
            self._rows = self._rows.copy()
        else:
            rows = self._cached.map()
            for number in self._own:
                start, stop = self._place(number, len(rows))
                rows[start:stop] = self._rows[start:stop]
            self._rows = rows
        self._shared = False

    def _grow(self, count: int) -> None:
        """Room for `count` rows: exactly that the first time, with some to spare after."""
        first = self._generation < 0
        size = count if first else max(count, len(self._rows) * 5 // 4)
        rows = np.empty((size, self._column.width), dtype=np.float32)
        kept = min(len(self._rows), count) if first else self._count
        rows[:kept] = self._rows[:kept]
        norms = np.zeros(self._column.blocks_for(size), dtype=np.float64)
        norms[: len(self._norms)] = self._norms
        self._rows, self._norms = rows, norms
        self._shared = self.mapped = False


def in_threads(work: Callable[[A], B], pieces: Sequence[A]) -> list[B]:
    """`work` done on every piece, by several threads where there are many: CRC-32 and copies run side by side."""
    threads = min(_THREADS, os.cpu_count() or 1)
    if threads == 1 or len(pieces) < _MANY:
        return [work(piece) for piece in pieces]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, pieces))
