"""One committed state of a gallery in memory, shared by all threads that read it."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable

from holdfast.gallery.exact import Floats, Slots
from holdfast.gallery.stores.sqlite import columns
from holdfast.gallery.stores.sqlite.cache import Cached
from holdfast.gallery.stores.sqlite.columns import Column, Mark
from holdfast.gallery.stores.sqlite.database import DamageError
from holdfast.gallery.stores.sqlite.memory import Memory
from holdfast.gallery.stores.sqlite.meta import Meta

Load = Callable[[Column], Cached | None]
"""Gives the cache of a column, where there is one."""


class View:
    """The columns of a gallery as of one generation; each is brought there when it is first asked for.

    While a thread reads a view it stays as it is: the next generation is then shown by a `fork`, which shares
    all memory with it that has not changed. A view that nobody reads is moved on instead.
    """

    def __init__(self, load: Load, state: Meta) -> None:
        self.state = state
        self.readers = 0
        self._load = load
        self._lock = threading.Lock()
        self._memories: dict[str, Memory] = {}
        self._marks: dict[str, list[Mark]] = {}

    def at(self, state: Meta) -> View:
        """The view of another, later state: this one, if nobody reads it."""
        view = self
        if self.readers:
            view = View(self._load, state)
            with self._lock:
                view._memories = {kind: memory.fork() for kind, memory in self._memories.items()}
        view.state, view._marks = state, {}
        return view

    def memory(self, connection: sqlite3.Connection, column: Column, *, check: bool = True) -> Memory:
        """A column as of this view, all of it ready for use unless not `check`.

        `connection` is in a transaction on the state that this view shows.
        """
        with self._lock:
            memory = self._memories.get(column.kind)
            if memory is None:
                memory = self._memories[column.kind] = Memory(column, self._load(column))
            self._follow(connection, memory, column)
            if check:
                memory.check(connection)
            return memory

    def gather(self, connection: sqlite3.Connection, column: Column, slots: Slots) -> Floats:
        """Some rows of a column: from memory if it is there or can be mapped, else from the file."""
        if len(slots) and not (slots.min() >= 0 and slots.max() < self.state.count):
            raise DamageError(f"a slot beyond the {self.state.count} items is named")
        with self._lock:
            memory = self._memories.get(column.kind)
            if memory is None and (cached := self._load(column)) is not None:
                memory = self._memories[column.kind] = Memory(column, cached)
            if memory is not None:
                self._follow(connection, memory, column)
                memory.check(connection, slots)
                rows = memory.rows
            elif column.kind not in self._marks:
                root = self.state.roots.get(column.kind)
                self._marks[column.kind] = columns.marks(connection, column, root)
        if memory is not None:
            return rows[slots]
        return columns.gather(connection, column, slots, self._marks[column.kind])

    def _follow(self, connection: sqlite3.Connection, memory: Memory, column: Column) -> None:
        state = self.state
        memory.follow(connection, state.count, state.generation, state.roots.get(column.kind))
