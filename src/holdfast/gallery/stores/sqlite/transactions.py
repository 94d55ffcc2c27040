"""The file of a gallery while it is open: its transactions, and its columns in memory."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from holdfast.deadline import check as check_deadline
from holdfast.errors import GalleryError
from holdfast.gallery.exact import Floats, Slots
from holdfast.gallery.stores.base import VECTOR, GoneError, VectorStore
from holdfast.gallery.stores.sqlite import cache, columns, database, items, meta, writing
from holdfast.gallery.stores.sqlite.database import DamageError
from holdfast.gallery.stores.sqlite.memory import Memory
from holdfast.gallery.stores.sqlite.meta import Meta
from holdfast.gallery.stores.sqlite.view import View
from holdfast.gallery.values import GalleryInfo

_IDLE = 8
"""Connections that are kept for the next reads."""


@dataclass(frozen=True)
class _Frame:
    """What a thread is in the middle of: a read of the state of `view`, or a write (None)."""

    connection: sqlite3.Connection
    view: View | None
    state: Meta | None = None
    """What the gallery said of itself when the read began."""


class _Here(threading.local):
    """What the current thread is in the middle of, innermost last."""

    def __init__(self) -> None:
        self.frames: list[_Frame] = []


class Transactions(VectorStore):
    """The connections to a gallery's file, shared by threads: one that writes, and one for each that reads now.

    Each outermost read begins a transaction on the newest committed state and shows its view; reads of other
    threads, and writes, go on meanwhile. Writes of one process wait for each other.
    """

    def __init__(
        self,
        path: Path,
        connection: sqlite3.Connection,
        signature: tuple[int, ...],
        *,
        readonly: bool,
        frozen: bool,
        wait: float,
    ) -> None:
        self.path: Path = path
        self._file = path.absolute()  # the same also when the process changes its folder
        self._main = connection
        self._readonly = readonly
        self._frozen = frozen
        self._wait = wait
        self._signature = signature
        self._lock = threading.Lock()  # of the fields below
        self._writing = threading.RLock()
        self._here = _Here()
        self._closed = False
        self._idle = [connection] if readonly else []
        state = meta.read(connection)
        self._uid, self.vector = state.uid, state.vector
        self._view = View(self._cached, state)

    @property
    def connection(self) -> sqlite3.Connection:
        """That of the read or write that this thread is in; outside, the one that writes."""
        frames = self._here.frames
        return frames[-1].connection if frames else self._main

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """One committed state for all reads of the block in this thread, the columns in memory included."""
        with database.reading(self.path):
            self._check_open()
            if self._reading is not None:
                with self._unchanged():
                    yield
                return
            frame = self._begin()
            self._here.frames.append(frame)
            try:
                with self._unchanged():
                    yield
            finally:
                self._here.frames.pop()
                self._end(frame)

    @property
    def state(self) -> Meta:
        """What the gallery says of itself; inside a `snapshot`."""
        state = self._here.frames[-1].state if self._here.frames else None
        assert state is not None, "states are read inside a `snapshot`"
        return state

    @property
    def memory(self) -> Memory:
        """The vectors; inside a `snapshot`."""
        return self._shown.memory(self.connection, self.vector)

    def rows(self, kind: str) -> Floats:
        """All rows of a column, held in memory from the first time on; inside a `snapshot`."""
        return self._shown.memory(self.connection, self.declared(kind)).rows

    def column(self, kind: str, slots: Slots) -> Floats:
        """Some rows of a column; inside a `snapshot` or a `write`."""
        if self._reading is None:
            return columns.gather(self.connection, meta.read(self.connection).columns[kind], slots)
        return self._shown.gather(self.connection, self.declared(kind), slots)

    def bound_vectors(self) -> items.Vectors | None:
        """The vectors that items are compared with; None for a file of before, which the first write binds."""
        if self._reading is not None and not self.state.bound:
            return None
        return lambda slots: self.column(VECTOR, slots)

    def declared(self, kind: str) -> columns.Column:
        """A column of the file; inside a `snapshot`."""
        column = self.vector if kind == VECTOR else self.state.columns.get(kind)
        if column is None:
            raise DamageError(f"its column '{kind}' is missing")
        return column

    def check_count(self) -> None:
        """Refuse a file that lists more or fewer items than it counts."""
        with self.snapshot():
            listed, count = items.count(self.connection), self.state.count
            if listed != count:
                raise DamageError(f"{listed} items are listed where meta counts {count}")

    def prepare(self) -> None:
        """Read or map the vectors, and refuse a file in which they are not all there."""
        with self.snapshot():
            self._shown.memory(self.connection, self.vector, check=False)

    @contextmanager
    def write(self, size: int = 0) -> Iterator[None]:
        """One write: on the disk when the block has ended, undone by any error."""
        self._check_outside()
        with self._writing, database.writing(self.path):
            self.check_writable()
            self._main.execute("BEGIN IMMEDIATE")
            self._here.frames.append(_Frame(self._main, None))
            try:
                state = meta.read(self._main)
                self._check_same(state.uid)
                if not state.bound:
                    writing.from_before(self._main)
                yield
                if self._moved():
                    raise GalleryError(
                        f"{self.path} was moved or deleted while open; nothing was written;"
                        " open the gallery where it is now"
                    )
                check_deadline()  # What was answered as stopped is not kept.
                self._main.execute("COMMIT")
            finally:
                self._here.frames.pop()
                self._main.rollback()

    @contextmanager
    def alone(self) -> Iterator[sqlite3.Connection]:
        """No other thread writes during the block; no transaction is begun."""
        self._check_outside()
        with self._writing:
            self.check_writable()
            yield self._main

    @contextmanager
    def lent(self) -> Iterator[sqlite3.Connection]:
        """A connection in a transaction: that of the read or write that this thread is in, or on the newest state.

        Unlike `snapshot` it asks nothing of what the file says, only whether it is the same file.
        """
        if self._here.frames:
            self._check_open()
            with self._unchanged():
                yield self._here.frames[-1].connection
            return
        with self._lock:
            connection = self._borrow()
        try:
            self._check_same()
            connection.execute("BEGIN")
            with self._unchanged():
                yield connection
        finally:
            with self._lock:
                self._give_back(connection)

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Inside a write: reads of this thread see what has been written so far."""
        state = meta.read(self._main)
        self._here.frames.append(_Frame(self._main, View(lambda column: None, state), state))
        try:
            yield
        finally:
            self._here.frames.pop()

    def info(self) -> GalleryInfo:
        """What the gallery says of itself: as of the snapshot or write that this thread is in, or as last committed."""
        with database.reading(self.path), self.lent() as connection:
            state = self._here.frames[-1].state if self._here.frames else None
            found = state or meta.read(connection)
        return GalleryInfo(
            self.path,
            found.uid,
            found.dim,
            found.count,
            found.embedder,
            found.created,
            found.generation,
            found.boxes,
        )

    def check_writable(self) -> None:
        """Refuse a write that could not be kept."""
        self._check_open()
        if self._readonly:
            raise GalleryError(f"{self.path} is open for reading only; open it without readonly to change it")
        self._check_outside()
        if self._moved():
            raise GalleryError(
                f"{self.path} was moved or deleted while open; open the gallery where it is now"
            )

    def close(self) -> None:
        """Let go of the file; a thread that still reads keeps its connection until it is done."""
        with self._writing, self._lock:
            self._closed = True
            for connection in self._idle:
                connection.close()
            self._idle.clear()
            if not self._readonly:
                self._main.close()

    @property
    def _reading(self) -> View | None:
        return self._here.frames[-1].view if self._here.frames else None

    @property
    def _shown(self) -> View:
        view = self._reading
        assert view is not None, "columns are read inside a `snapshot`"
        return view

    def _begin(self) -> _Frame:
        """Begin a read. One thread at a time, so that no view is older than one shown before."""
        with self._lock:
            connection = self._borrow()
            try:
                self._check_same()
                connection.execute("BEGIN")
                state = meta.read(connection)
                self._check_same(state.uid)
                shown = self._view.state
                if state.generation < shown.generation or (
                    state.generation == shown.generation and state.roots != shown.roots
                ):
                    self._view = View(self._cached, state)  # restored from another copy
                elif state.generation != shown.generation:
                    self._view = self._view.at(state)
                self._view.readers += 1
                return _Frame(connection, self._view, state)
            except BaseException:
                self._give_back(connection)
                raise

    def _end(self, frame: _Frame) -> None:
        with self._lock:
            if frame.view is not None:
                frame.view.readers -= 1
            self._give_back(frame.connection)

    def _borrow(self) -> sqlite3.Connection:
        self._check_open()
        if self._idle:
            return self._idle.pop()
        connection, frozen = database.connect(self._file, readonly=self._readonly, timeout=self._wait)
        try:
            connection.execute("PRAGMA query_only = 1")
            connection.execute("SELECT 1 FROM sqlite_master").fetchone()  # opens the file
            if self._moved() or frozen != self._frozen:
                raise self._other()
        except BaseException:
            connection.close()
            raise
        return connection

    def _give_back(self, connection: sqlite3.Connection) -> None:
        try:
            connection.rollback()
        finally:
            if self._closed or len(self._idle) >= _IDLE:
                connection.close()
            else:
                self._idle.append(connection)

    def _cached(self, column: columns.Column) -> cache.Cached | None:
        return cache.load(self.path, self._uid, column)

    def _moved(self) -> bool:
        return database.identity(self._file) != self._signature[:2]

    def _stale(self) -> bool:
        # Without write access SQLite cannot see that the file changed, so its stamp is compared instead.
        return self._frozen and database.signature(self._file) != self._signature

    def _other(self) -> GoneError:
        return GoneError(f"{self.path} was replaced or changed by its owner; open it again")

    def _check_outside(self) -> None:
        if self._reading is not None and not self._readonly:
            raise GalleryError(f"{self.path} cannot be changed inside a snapshot; leave the snapshot first")

    def _check_open(self) -> None:
        if self._closed:
            raise GoneError(f"the gallery {self.path} is closed; open it again")

    def _check_same(self, uid: str | None = None) -> None:
        """Refuse a file, or (with `uid`) a gallery in it, that is not the one that was opened."""
        if uid is None:
            if self._stale() or self._moved():
                raise self._other()
        elif uid != self._uid:
            raise self._other()

    @contextmanager
    def _unchanged(self) -> Iterator[None]:
        """What was read in the block is of one state, or an error that says so."""
        try:
            yield
        except (*database.FAULTS, GalleryError) as cause:
            if self._stale():
                raise self._other() from cause
            raise
        if self._stale():
            raise self._other()


@contextmanager
def opened(path: Path, *, readonly: bool, wait: float) -> Iterator[tuple[sqlite3.Connection, bool]]:
    """A connection to a complete gallery, and whether it is frozen; closed only if the block fails."""
    kind = database.kind_of(path)
    if kind == "missing":
        raise GalleryError(f"there is no gallery at {path}; make one with 'holdfast index'")
    if kind != "gallery":
        raise GalleryError(f"{path} is not a gallery; make one with 'holdfast index'")
    with database.reading(path):
        connection, frozen = database.connect(path, readonly=readonly, timeout=wait)
        try:
            if not laid_out(connection):
                raise GalleryError(f"{path} was never finished; make it again with 'holdfast index'")
            meta.check_version(connection)
            yield connection, frozen
        except BaseException:
            connection.close()
            raise


def laid_out(connection: sqlite3.Connection) -> bool:
    """Whether the file has the tables of a gallery."""
    return connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone() is not None
