"""One committed state of a gallery in memory, shared by all threads that read it."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable

from holdfast.gallery import columns
from holdfast.gallery.cache import Cached
from holdfast.gallery.columns import Column
from holdfast.gallery.exact import Floats, Slots
from holdfast.gallery.memory import Memory

Load = Callable[[Column], Cached | None]
"""Gives the cache of a column, where there is one."""


class View:
    """The columns of a gallery as of one generation; each is brought there when it is first asked for.

    While a thread reads a view it stays as it is: the next generation is then shown by a `fork`, which shares
    all memory with it that has not changed. A view that nobody reads is moved on instead.
    """

    def __init__(self, load: Load) -> None:
        self.count = 0
        self.generation = -1
        self.readers = 0
        self._load = load
        self._lock = threading.Lock()
        self._memories: dict[str, Memory] = {}

    def at(self, count: int, generation: int) -> View:
        """The view of another, later generation: this one, if nobody reads it."""
        view = self
        if self.readers:
            view = View(self._load)
            with self._lock:
                view._memories = {kind: memory.fork() for kind, memory in self._memories.items()}
        view.count, view.generation = count, generation
        return view

    def memory(self, connection: sqlite3.Connection, column: Column, *, check: bool = True) -> Memory:
        """A column as of this view, all of it ready for use unless not `check`.

        `connection` is in a transaction on the state that this view shows.
        """
        with self._lock:
            memory = self._memories.get(column.kind)
            if memory is None:
                memory = self._memories[column.kind] = Memory(column, self._load(column))
            memory.follow(connection, self.count, self.generation)
            if check:
                memory.check(connection)
            return memory

    def gather(self, connection: sqlite3.Connection, column: Column, slots: Slots) -> Floats:
        """Some rows of a column: from memory if it is there or can be mapped, else from the file."""
        with self._lock:
            memory = self._memories.get(column.kind)
            if memory is None and (cached := self._load(column)) is not None:
                memory = self._memories[column.kind] = Memory(column, cached)
            if memory is not None:
                memory.follow(connection, self.count, self.generation)
                memory.check(connection, slots)
                rows = memory.rows
        return columns.gather(connection, column, slots) if memory is None else rows[slots]
