"""A column of a gallery in one piece of memory, following the file."""

from __future__ import annotations

import sqlite3

import numpy as np

from holdfast.gallery.columns import Column, changed_since
from holdfast.gallery.database import DamageError
from holdfast.gallery.exact import Floats


class Memory:
    """A copy of a float32 column that re-reads only the blocks changed since it last looked."""

    def __init__(self, column: Column) -> None:
        self._column = column
        self._rows: Floats = np.empty((0, column.width), dtype=np.float32)
        self._norms = np.empty(0, dtype=np.float64)
        self._count = 0
        self._generation = -1

    @property
    def rows(self) -> Floats:
        """The row of each slot, contiguous; valid until the next `follow`."""
        return self._rows[: self._count]

    @property
    def max_norm(self) -> float:
        """At least the norm of each row."""
        return float(self._norms[: self._column.blocks_for(self._count)].max(initial=0.0))

    def follow(self, connection: sqlite3.Connection, count: int, generation: int) -> None:
        """Bring memory to the state of the file, whose meta says `count` and `generation`."""
        if generation == self._generation:
            return
        rows, norms = self._rows, self._norms
        if count > len(rows):
            rows, norms = self._grown(count)
        per_block = self._column.block_rows
        filled = self._count
        for block in changed_since(connection, self._column, self._generation):
            start, stop = block.number * per_block, block.number * per_block + len(block.rows)
            if stop > count or start > filled or len(block.rows) < min(per_block, count - start):
                raise DamageError(
                    f"{count} items, but column '{self._column.kind}' has rows {start} to {stop}"
                )
            rows[start:stop] = block.rows
            norms[block.number] = block.max_norm
            filled = max(filled, stop)
        if filled < count:
            raise DamageError(f"{count} items, but column '{self._column.kind}' has only {filled} rows")
        self._rows, self._norms, self._count, self._generation = rows, norms, count, generation

    def _grown(self, count: int) -> tuple[Floats, np.ndarray[tuple[int], np.dtype[np.float64]]]:
        """Room for `count` rows: exactly that the first time, with some to spare after."""
        size = count if not self._count else max(count, len(self._rows) * 5 // 4)
        rows = np.empty((size, self._column.width), dtype=np.float32)
        rows[: self._count] = self._rows[: self._count]
        norms = np.zeros(self._column.blocks_for(size), dtype=np.float64)
        norms[: len(self._norms)] = self._norms
        return rows, norms
