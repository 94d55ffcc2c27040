"""A consistent copy of a gallery while others write it."""

from __future__ import annotations

import os
import sqlite3
import uuid
from contextlib import closing, suppress
from pathlib import Path

from holdfast.errors import GalleryError, StorageError
from holdfast.gallery import check, database
from holdfast.gallery.database import DamageError
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
            for file in (temporary, *(_beside(temporary, end) for end in ("-wal", "-shm", "-journal"))):
                with suppress(OSError):
                    file.unlink()
    return size


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
