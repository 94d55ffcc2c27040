"""A gallery's file: made, and taken away."""

from __future__ import annotations

import json
import os
import sqlite3
import uuid
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path

from holdfast.errors import GalleryError
from holdfast.gallery.stores.base import VECTOR
from holdfast.gallery.stores.sqlite import cache, columns, database, meta
from holdfast.gallery.stores.sqlite.meta import Meta
from holdfast.gallery.stores.sqlite.transactions import laid_out
from holdfast.gallery.values import EmbedderInfo


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
        if not content and laid_out(connection) and meta.read(connection).count:
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


def _lay_out(
    path: Path, connection: sqlite3.Connection, dim: int, embedder: EmbedderInfo, *, overwrite: bool
) -> None:
    connection.execute("BEGIN IMMEDIATE")
    if laid_out(connection):
        if not overwrite:
            raise GalleryError(f"{path} exists already; choose another path, or say that it is overwritten")
        for table in ("meta", "items", "columns", "blocks", "certificates"):
            connection.execute(f"DROP TABLE IF EXISTS {table}")
    database.lay_out(connection)
    state = Meta(
        uuid.uuid4().hex,
        dim,
        count=0,
        generation=0,
        fingerprint=embedder.fingerprint,
        card=json.dumps(embedder.card, sort_keys=True),
        location=embedder.location,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        columns={},
    )
    meta.write(connection, meta.declare(connection, state, columns.Column.of(VECTOR, "<f4", dim)))
    connection.execute("COMMIT")
