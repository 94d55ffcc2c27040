"""The file of a gallery while it is open: its transactions, and its columns in memory."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from holdfast.deadline import check as check_deadline
from holdfast.errors import GalleryError
from holdfast.gallery import boxes, cache, columns, database
from holdfast.gallery.database import DamageError
from holdfast.gallery.exact import Floats, Slots
from holdfast.gallery.memory import Memory
from holdfast.gallery.values import EmbedderInfo, GalleryInfo
from holdfast.gallery.view import View
from holdfast.gallery.writing import VECTOR

_IDLE = 8
"""Connections that are kept for the next reads."""


@dataclass(frozen=True)
class _Frame:
    """What a thread is in the middle of: a read of the state of `view`, or a write (None)."""

    connection: sqlite3.Connection
    view: View | None


class _Here(threading.local):
    """What the current thread is in the middle of, innermost last."""

    def __init__(self) -> None:
        self.frames: list[_Frame] = []


class Store:
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
        self.path = path
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
        self._uid, _, _ = _state(connection)
        self.column = _vector_column(connection)
        self._view = View(self._cached)

    @property
    def connection(self) -> sqlite3.Connection:
        """That of the read or write that this thread is in; outside, the one that writes."""
        frames = self._here.frames
        return frames[-1].connection if frames else self._main

    @contextmanager
    def read(self) -> Iterator[None]:
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
    def memory(self) -> Memory:
        """The vectors; inside a `read`."""
        return self._shown.memory(self.connection, self.column)

    def rows(self, kind: str) -> Floats:
        """All rows of another column, held in memory from the first time on; inside a `read`."""
        return self._shown.memory(self.connection, self.declared(kind)).rows

    def gather(self, kind: str, slots: Slots) -> Floats:
        """Some rows of a column; inside a `read`."""
        column = self.column if kind == VECTOR else self.declared(kind)
        return self._shown.gather(self.connection, column, slots)

    def declared(self, kind: str) -> columns.Column:
        """A column of the file; inside a `read`."""
        column = columns.declared(self.connection).get(kind)
        if column is None:
            raise DamageError(f"its column '{kind}' is missing")
        return column

    def prepare(self) -> None:
        """Read or map the vectors, and refuse a file in which they are not all there."""
        with self.read():
            self._shown.memory(self.connection, self.column, check=False)

    @contextmanager
    def write(self) -> Iterator[None]:
        """One write: on the disk when the block has ended, undone by any error."""
        self._check_outside()
        with self._writing, database.writing(self.path):
            self.check_writable()
            self._main.execute("BEGIN IMMEDIATE")
            self._here.frames.append(_Frame(self._main, None))
            try:
                self._check_same(_state(self._main)[0])
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

        Unlike `read` it asks nothing of what the file says, only whether it is the same file.
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

    def info(self) -> GalleryInfo:
        """The row of meta, as last committed."""
        with database.reading(self.path), self.lent() as connection:
            uid, dim, count, generation, fingerprint, card, location, created = connection.execute(
                "SELECT uid, dim, count, generation, fingerprint, card, location, created FROM meta"
            ).fetchone()
            try:
                embedder = EmbedderInfo(fingerprint, json.loads(card), location)
            except ValueError as cause:
                raise DamageError("the embedder's card is not JSON") from cause
            sizes = boxes.sizes(columns.declared(connection))
            return GalleryInfo(self.path, uid, dim, count, embedder, created, generation, sizes)

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
        assert view is not None, "columns are read inside a `read`"
        return view

    def _begin(self) -> _Frame:
        """Begin a read. One thread at a time, so that no view is older than one shown before."""
        with self._lock:
            connection = self._borrow()
            try:
                self._check_same()
                connection.execute("BEGIN")
                uid, count, generation = _state(connection)
                self._check_same(uid)
                if generation < self._view.generation:
                    self._view = View(self._cached)  # restored from an older copy
                if generation != self._view.generation:
                    self._view = self._view.at(count, generation)
                self._view.readers += 1
                return _Frame(connection, self._view)
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

    def _other(self) -> GalleryError:
        return GalleryError(f"{self.path} was replaced or changed by its owner; open it again")

    def _check_outside(self) -> None:
        if self._reading is not None and not self._readonly:
            raise GalleryError(f"{self.path} cannot be changed inside a snapshot; leave the snapshot first")

    def _check_open(self) -> None:
        if self._closed:
            raise GalleryError(f"the gallery {self.path} is closed; open it again")

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
        except (sqlite3.Error, DamageError, GalleryError) as cause:
            if self._stale():
                raise self._other() from cause
            raise
        if self._stale():
            raise self._other()

    def check_embedder(self, embedder: EmbedderInfo) -> None:
        """Refuse an embedder that did not make the vectors."""
        embedder.check_made(self.path, self.info().embedder.fingerprint)


def _state(connection: sqlite3.Connection) -> tuple[str, int, int]:
    found = connection.execute("SELECT uid, count, generation FROM meta").fetchone()
    if found is None:
        raise DamageError("its table meta is empty")
    uid, count, generation = found
    return uid, count, generation


def _vector_column(connection: sqlite3.Connection) -> columns.Column:
    column = columns.declared(connection).get(VECTOR)
    if column is None or (column.width,) != connection.execute("SELECT dim FROM meta").fetchone():
        raise DamageError("its column of vectors is missing or of another size")
    return column


def open_store(path: Path, *, embedder: EmbedderInfo | None, readonly: bool, wait: float) -> Store:
    """The gallery at `path`, its vectors read or mapped; refused if another embedder made it."""
    signature = database.signature(path)
    with opened(path, readonly=readonly, wait=wait) as (connection, frozen):
        store = Store(path, connection, signature, readonly=readonly, frozen=frozen, wait=wait)
        try:
            store.info()  # refuses a gallery that contradicts itself
            if embedder is not None:
                store.check_embedder(embedder)
            store.prepare()
        except BaseException:
            store.close()
            raise
        return store


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
            if not _laid_out(connection):
                raise GalleryError(f"{path} was never finished; make it again with 'holdfast index'")
            yield connection, frozen
        except BaseException:
            connection.close()
            raise


def create_store(path: Path, *, dim: int, embedder: EmbedderInfo, overwrite: bool, wait: float) -> None:
    """Lay out an empty gallery at `path`; an error leaves what was there, or nothing that could be opened."""
    if dim < 1:
        raise GalleryError(f"vectors have at least 1 number, not {dim}")
    kind = database.kind_of(path)
    if kind == "foreign":
        raise GalleryError(f"{path} exists and is not a gallery; choose another path")
    with database.writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        ours = kind == "missing" and _claim(path)
        try:
            connection = database.connect_new(path, timeout=wait)
            try:
                _lay_out(path, connection, dim, embedder, overwrite=overwrite)
            finally:
                connection.close()
            cache.discard(path)
        except BaseException:
            # Another process may have laid it out meanwhile, and have been told that its writes are kept.
            with suppress(OSError):
                if ours and path.stat().st_size == 0:
                    path.unlink()
            raise


def discard_store(path: Path, *, content: bool) -> None:
    """Remove the gallery at `path`, its log and its cache, while no other has it open.

    One that another process has open stays, and so, unless `content`, does one that holds candidates.
    """
    if database.kind_of(path) != "gallery":
        return
    with database.writing(path), closing(database.connect(path, readonly=False, timeout=0)[0]) as connection:
        try:
            # Only who is alone may take the log away: SQLite does it here, and the lock lasts until the close.
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            connection.execute("PRAGMA journal_mode = DELETE")
            connection.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError as cause:
            if cause.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                raise
            return
        if not content and _laid_out(connection) and _state(connection)[1]:
            connection.rollback()
            connection.execute("PRAGMA journal_mode = WAL")
            return
        cache.discard(path)
        path.unlink()
        connection.rollback()


def _claim(path: Path) -> bool:
    """Make an empty file, if no other process is quicker."""
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        return True
    return False


def _laid_out(connection: sqlite3.Connection) -> bool:
    return connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone() is not None


def _lay_out(
    path: Path, connection: sqlite3.Connection, dim: int, embedder: EmbedderInfo, *, overwrite: bool
) -> None:
    connection.execute("BEGIN IMMEDIATE")
    if _laid_out(connection):
        if not overwrite:
            raise GalleryError(f"{path} exists already; choose another path, or say that it is overwritten")
        for table in ("meta", "items", "columns", "blocks", "certificates"):
            connection.execute(f"DROP TABLE IF EXISTS {table}")
    for statement in database.TABLES:
        connection.execute(statement)
    database.upgrade(connection)
    connection.execute(
        "INSERT INTO meta (one, uid, dim, count, generation, fingerprint, card, location, created)"
        " VALUES (1, ?, ?, 0, 0, ?, ?, ?, ?)",
        (
            uuid.uuid4().hex,
            dim,
            embedder.fingerprint,
            json.dumps(embedder.card, sort_keys=True),
            embedder.location,
            datetime.now(UTC).isoformat(timespec="seconds"),
        ),
    )
    columns.declare(connection, columns.Column.of(VECTOR, "<f4", dim))
    connection.execute("COMMIT")
