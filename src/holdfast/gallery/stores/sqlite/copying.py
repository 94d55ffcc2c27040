"""A consistent copy of a gallery while others write it, and a gallery in the place of one that others read."""

from __future__ import annotations

import dataclasses
import os
import sqlite3
import time
import uuid
from contextlib import closing, suppress
from pathlib import Path

from holdfast.errors import GalleryError, StorageError
from holdfast.gallery.stores.sqlite import check, database, meta, writing
from holdfast.gallery.stores.sqlite.database import DamageError
from holdfast.progress import bar

_STEP = 256
"""Pages that are copied at a time: 16 MiB."""


def copy(connection: sqlite3.Connection, source: Path, out: Path) -> int:
    """Copy the state that the transaction of `connection` sees to `out`, and say how many bytes it has.

    What is there already is never overwritten. The copy is read whole and compared before it gets its name; an
    error, or a kill, leaves no `out` behind.
    """
    _check_free(out)
    temporary = out.with_name(f".{out.name}.{os.getpid()}.{uuid.uuid4().hex}.tmp")
    with database.writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        try:
            _fill(connection, source, temporary)
            with open(temporary, "rb+") as handle:
                os.fsync(handle.fileno())
                size = os.fstat(handle.fileno()).st_size
            _place(temporary, out)
        finally:
            _tidy(temporary)
    return size


def replace(connection: sqlite3.Connection, new: Path, live: Path, *, wait: float = 30.0) -> None:
    """Put the state of `new` that the transaction of `connection` sees in the place of what the gallery `live` holds.

    One transaction: whoever has `live` open sees the old content, then is told to open it again, and an error or a
    kill leaves the old. The new content is read whole and compared first.
    """
    if database.kind_of(live) != "gallery":
        raise GalleryError(
            f"{live} is not a gallery that could be replaced; a new place needs 'gallery snapshot'"
        )
    temporary = live.with_name(f".{live.name}.{uuid.uuid4().hex}.tmp")
    with database.writing(live):
        try:
            _fill(connection, new, temporary)
            with (
                closing(sqlite3.connect(temporary, isolation_level=None)) as source,
                closing(database.connect(live, readonly=False, timeout=wait)[0]) as target,
            ):
                # A copy of `live` itself has its name: with a new one nobody takes what he knows for what is there.
                if not meta.read(source).bound:
                    writing.from_before(source)
                meta.write(source, dataclasses.replace(meta.read(source), uid=uuid.uuid4().hex))
                _check_pages(source, target, live)
                _move(source, target, live, wait)
                target.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        finally:
            _tidy(temporary)


def _check_pages(source: sqlite3.Connection, target: sqlite3.Connection, live: Path) -> None:
    sizes = [connection.execute("PRAGMA page_size").fetchone()[0] for connection in (source, target)]
    if sizes[0] != sizes[1]:
        raise GalleryError(
            f"{live} has pages of {sizes[1]} bytes and the new gallery of {sizes[0]}; stop who uses it, remove it "
            "with its -wal and -shm, and make it anew by 'gallery snapshot'"
        )


def _move(source: sqlite3.Connection, target: sqlite3.Connection, live: Path, wait: float) -> None:
    """All pages of `source` into `target`, which is the old one until the last is there."""
    last, since = -1, time.monotonic()

    def moved(_: int, remaining: int, __: int) -> None:
        nonlocal last, since
        if remaining != last:
            last, since = remaining, time.monotonic()
        elif time.monotonic() - since > wait:
            raise GalleryError(f"{live} is being written by another process; try again when it is done")

    source.backup(target, pages=_STEP, progress=moved)


def _tidy(temporary: Path) -> None:
    for file in (temporary, *(_beside(temporary, end) for end in ("-wal", "-shm", "-journal"))):
        with suppress(OSError):
            file.unlink()


def _fill(connection: sqlite3.Connection, source: Path, temporary: Path) -> None:
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    with closing(sqlite3.connect(temporary, isolation_level=None)) as target:
        # Nobody knows this file yet: it is flushed once, when it is whole.
        target.execute("PRAGMA synchronous = OFF")
        with bar("copying", pages) as advance:
            left = pages

            def moved(_: int, remaining: int, __: int) -> None:
                nonlocal left
                advance(left - remaining)
                left = remaining

            # The transaction of the source is open, so that no write by others begins the copy anew.
            connection.backup(target, pages=_STEP, progress=moved)
        target.execute("PRAGMA journal_mode = WAL")  # as galleries are
        found = check.problems(target)
    if found and check.problems(connection):
        raise GalleryError(
            f"{source} is damaged ({found[0]}); nothing was copied; restore it from a copy or index the images again"
        )
    if found:
        raise DamageError(found[0])


def _place(temporary: Path, out: Path) -> None:
    """Give the file its name, unless another has it by now."""
    try:
        os.link(temporary, out)
    except FileExistsError as cause:
        raise StorageError(f"{out} is there already; choose another name, or remove it") from cause
    except OSError:  # a file system without links
        _check_free(out)
        temporary.rename(out)
    folder = os.open(out.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _check_free(out: Path) -> None:
    """Refuse a name that is taken, also by what a deleted gallery left: SQLite would mix its log in."""
    for taken in (out, *(_beside(out, end) for end in ("-wal", "-journal"))):
        if taken.exists():
            raise StorageError(f"{taken} is there already; choose another name, or remove it")


def _beside(path: Path, end: str) -> Path:
    return path.with_name(path.name + end)
