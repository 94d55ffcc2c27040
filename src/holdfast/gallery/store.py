"""The file of a gallery while it is open: its transactions, and its vectors in memory."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from holdfast.errors import GalleryError
from holdfast.gallery import boxes, columns, database
from holdfast.gallery.database import DamageError
from holdfast.gallery.exact import Floats
from holdfast.gallery.memory import Memory
from holdfast.gallery.values import EmbedderInfo, GalleryInfo
from holdfast.gallery.writing import VECTOR


class Store:
    """One connection to a gallery's file, shared by threads one at a time."""

    def __init__(self, path: Path, connection: sqlite3.Connection, *, readonly: bool, frozen: bool) -> None:
        self.path = path
        self.connection = connection
        self._readonly = readonly
        self._frozen = frozen
        self._signature = database.signature(path)
        self._lock = threading.RLock()
        self._closed = False
        self._inside = False
        self._uid, _, _ = self._state()
        self.column = self._vector_column()
        self.memory = Memory(self.column)
        self._others: dict[str, Memory] = {}

    @contextmanager
    def read(self) -> Iterator[None]:
        """One committed state for all reads of the block, the vectors in memory included."""
        with self._lock, database.reading(self.path):
            self._check_open()
            if self._inside:
                yield
                return
            self._inside = True
            try:
                self.connection.execute("BEGIN")
                uid, count, generation = self._state()
                self._check_same(uid)
                self.memory.follow(self.connection, count, generation)
                yield
            finally:
                self._inside = False
                self.connection.rollback()

    def rows(self, kind: str) -> Floats:
        """All rows of another column, held in memory from the first time on; inside a `read`."""
        if kind not in self._others:
            self._others[kind] = Memory(self.declared(kind))
        _, count, generation = self._state()
        self._others[kind].follow(self.connection, count, generation)
        return self._others[kind].rows

    def declared(self, kind: str) -> columns.Column:
        """A column of the file; inside a `read`."""
        column = columns.declared(self.connection).get(kind)
        if column is None:
            raise DamageError(f"its column '{kind}' is missing")
        return column

    @contextmanager
    def write(self) -> Iterator[None]:
        """One write: on the disk when the block has ended, undone by any error."""
        with self._lock, database.writing(self.path):
            self.check_writable()
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                self._check_same(self._state()[0])
                yield
                self.connection.execute("COMMIT")
            finally:
                self.connection.rollback()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """No other thread uses the connection during the block; no transaction is begun."""
        with self._lock:
            self._check_open()
            yield

    def info(self) -> GalleryInfo:
        """The row of meta, as last committed."""
        with self.alone(), database.reading(self.path):
            uid, dim, count, generation, fingerprint, card, location, created = self.connection.execute(
                "SELECT uid, dim, count, generation, fingerprint, card, location, created FROM meta"
            ).fetchone()
            try:
                embedder = EmbedderInfo(fingerprint, json.loads(card), location)
            except ValueError as cause:
                raise DamageError("the embedder's card is not JSON") from cause
            sizes = boxes.sizes(columns.declared(self.connection))
            return GalleryInfo(self.path, uid, dim, count, embedder, created, generation, sizes)

    def check_writable(self) -> None:
        """Refuse a write that could not be kept."""
        self._check_open()
        if self._readonly:
            raise GalleryError(f"{self.path} is open for reading only; open it without readonly to change it")
        if self._inside:
            raise GalleryError(f"{self.path} cannot be changed inside a snapshot; leave the snapshot first")
        if database.signature(self.path)[:2] != self._signature[:2]:
            raise GalleryError(
                f"{self.path} was moved or deleted while open; open the gallery where it is now"
            )

    def close(self) -> None:
        """Let go of the file."""
        with self._lock:
            self._closed = True
            self.connection.close()

    def _state(self) -> tuple[str, int, int]:
        found = self.connection.execute("SELECT uid, count, generation FROM meta").fetchone()
        if found is None:
            raise DamageError("its table meta is empty")
        uid, count, generation = found
        return uid, count, generation

    def _vector_column(self) -> columns.Column:
        column = columns.declared(self.connection).get(VECTOR)
        if column is None or (column.width,) != self.connection.execute("SELECT dim FROM meta").fetchone():
            raise DamageError("its column of vectors is missing or of another size")
        return column

    def _check_open(self) -> None:
        if self._closed:
            raise GalleryError(f"the gallery {self.path} is closed; open it again")

    def _check_same(self, uid: str) -> None:
        # Without write access SQLite cannot see that the file changed, so its stamp is compared instead.
        if uid != self._uid or (self._frozen and database.signature(self.path) != self._signature):
            raise GalleryError(f"{self.path} was replaced or changed by its owner; open it again")

    def check_embedder(self, embedder: EmbedderInfo) -> None:
        """Refuse an embedder that did not make the vectors."""
        made_by = self.info().embedder.fingerprint
        if made_by != embedder.fingerprint:
            raise GalleryError(
                f"{self.path} was made by embedder {made_by[:12]}, not by {embedder.fingerprint[:12]};"
                " use that embedder or index the images again"
            )


def open_store(path: Path, *, embedder: EmbedderInfo | None, readonly: bool, wait: float) -> Store:
    """The gallery at `path`, its vectors read; refused if another embedder made it."""
    with opened(path, readonly=readonly, wait=wait) as (connection, frozen):
        store = Store(path, connection, readonly=readonly, frozen=frozen)
        store.info()  # refuses a gallery that contradicts itself
        if embedder is not None:
            store.check_embedder(embedder)
        with store.read():
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
    """Lay out an empty gallery at `path`; an error leaves what was there, or nothing."""
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
        except BaseException:
            if ours:
                path.unlink(missing_ok=True)
            raise


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
