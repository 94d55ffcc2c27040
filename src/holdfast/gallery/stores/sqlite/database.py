"""The SQLite file under a gallery: how it is recognised, opened, and how its errors read."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Literal

from holdfast.errors import GalleryError, StorageError

APPLICATION_ID = 0x484F4C44
"""What marks an SQLite file as a gallery ("HOLD" in ASCII)."""

VERSION = 3
"""1: vectors only. 2: maybe other columns, and kept certificates. 3: all of it bound to the row of meta.

A file of before is read as it is, and brought to this version by the first write.
"""

BOUND = 3
"""The first version whose content is bound to the row of meta (`gallery.meta`)."""

PAGE_SIZE = 65536
"""The largest page there is: blocks of vectors are read a third faster than with the default."""

TABLES = (
    """CREATE TABLE meta (
        one INTEGER PRIMARY KEY CHECK (one = 1), uid TEXT NOT NULL, dim INTEGER NOT NULL,
        count INTEGER NOT NULL, generation INTEGER NOT NULL, fingerprint TEXT NOT NULL,
        card TEXT NOT NULL, location TEXT, created TEXT NOT NULL, items INTEGER NOT NULL,
        kept INTEGER NOT NULL, checksum INTEGER NOT NULL)""",
    """CREATE TABLE items (
        slot INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, label TEXT, path TEXT, digest TEXT,
        checksum INTEGER NOT NULL, key INTEGER NOT NULL)""",
    "CREATE INDEX item_keys ON items (key)",
    """CREATE TABLE columns (
        kind TEXT PRIMARY KEY, dtype TEXT NOT NULL, width INTEGER NOT NULL, block_rows INTEGER NOT NULL,
        root INTEGER NOT NULL)""",
    # The data comes last, so that reading the fields before it does not walk through its pages.
    """CREATE TABLE blocks (
        kind TEXT NOT NULL, block INTEGER NOT NULL, generation INTEGER NOT NULL,
        checksum INTEGER NOT NULL, max_norm REAL NOT NULL, data BLOB NOT NULL,
        PRIMARY KEY (kind, block))""",
    """CREATE TABLE IF NOT EXISTS certificates (
        query TEXT NOT NULL, threat TEXT NOT NULL, k INTEGER NOT NULL, generation INTEGER NOT NULL,
        checksum INTEGER NOT NULL, hits TEXT NOT NULL, unit_norm INTEGER NOT NULL,
        embedding BLOB NOT NULL, centre BLOB, radius BLOB, PRIMARY KEY (query, threat, k))""",
)

_FROM_BEFORE = (
    "ALTER TABLE meta ADD COLUMN items INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE meta ADD COLUMN kept INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE meta ADD COLUMN checksum INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE items ADD COLUMN key INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE columns ADD COLUMN root INTEGER NOT NULL DEFAULT 0",
    TABLES[2],
    TABLES[-1],
)
"""What brings the tables of a file of before to this version."""


class DamageError(Exception):
    """Stored content contradicts itself; `reading` and `writing` add which file it is."""


FAULTS = (sqlite3.Error, DamageError, UnicodeDecodeError)
"""What reading a damaged file raises: a damaged schema has names that are not text."""

FileKind = Literal["missing", "empty", "foreign", "gallery"]

_CHECKPOINT_PAGES = 128
_WAL_LIMIT = 1 << 26


def kind_of(path: Path) -> FileKind:
    """What is at `path`, told from its header; nothing is written.

    SQLite reads the header, not this program: when a process closes a file that it has read itself, the
    system drops the locks of all its connections to it, and another process would take the log away.
    """
    try:
        if not path.exists():
            return "missing"
        if not path.is_file():
            return "foreign"
        if not path.stat().st_size:
            return "empty"
        if not os.access(path, os.R_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as cause:
        raise GalleryError(f"could not read {path}: {cause.strerror or cause}") from cause
    try:
        return "gallery" if _mark(path, "mode=ro&immutable=1") == APPLICATION_ID else "foreign"
    except sqlite3.DatabaseError as cause:
        if getattr(cause, "sqlite_errorcode", 0) & 0xFF != sqlite3.SQLITE_CORRUPT:
            return "foreign"
    # Maybe the log is being merged, or a process was killed at it: the first page is ahead of the rest.
    try:
        return "gallery" if _mark(path, "mode=ro") == APPLICATION_ID else "foreign"
    except sqlite3.DatabaseError:
        return "gallery"  # too damaged to tell, as opening it will say


def _mark(path: Path, way: str) -> int:
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?{way}", uri=True)) as connection:
        return int(connection.execute("PRAGMA application_id").fetchone()[0])


def connect(path: Path, *, readonly: bool, timeout: float) -> tuple[sqlite3.Connection, bool]:
    """A connection to the gallery at `path` (which `kind_of` knows as one), its version checked.

    Read-only, it uses the plain way where the folder can be written, since only that way tidies
    up after a killed writer. Elsewhere the file is read as it is: the second value says so.
    """
    frozen = False
    if not readonly or (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
        connection = _connect(path, "mode=rw", timeout)
    elif _unmerged(path):
        connection = _connect(path, "mode=ro", timeout)
    else:
        connection = _connect(path, "mode=ro&immutable=1", timeout)
        frozen = True
    try:
        if readonly:
            connection.execute("PRAGMA query_only = 1")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version > VERSION:
            raise GalleryError(f"{path} is of version {version}, newer than this Holdfast reads; upgrade it")
    except BaseException:
        connection.close()
        raise
    return connection, frozen


def connect_new(path: Path, *, timeout: float) -> sqlite3.Connection:
    """A connection to an SQLite file that is marked as a gallery and has no tables yet, or an old gallery.

    The mark is written first: a process killed on the way leaves a file that `kind_of` knows.
    """
    connection = _connect(path, "mode=rwc", timeout)
    try:
        connection.execute(f"PRAGMA page_size = {PAGE_SIZE}")
        if connection.execute("PRAGMA application_id").fetchone() != (APPLICATION_ID,):
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute("COMMIT")
        connection.execute("PRAGMA journal_mode = WAL")
    except BaseException:
        connection.close()
        raise
    return connection


def lay_out(connection: sqlite3.Connection, *, from_before: bool = False) -> None:
    """Inside a write: the tables of this version, new or from those of before; its mark keeps older programs away."""
    for statement in _FROM_BEFORE if from_before else TABLES:
        connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {VERSION}")


def typed(where: str, row: Sequence[object], *kinds: type | tuple[type, ...]) -> None:
    """Refuse a row whose values are not of these types: SQLite stores any type in any column."""
    for value, kind in zip(row, kinds, strict=True):
        if not isinstance(value, kind):
            raise DamageError(f"{where} holds {_NAMES.get(type(value), 'nothing')} where it must not")


_NAMES = {int: "a whole number", float: "a number", str: "text", bytes: "bytes"}


def _connect(path: Path, query: str, timeout: float) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?{query}",
        uri=True,
        timeout=timeout,
        isolation_level=None,
        check_same_thread=False,
    )
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA trusted_schema = 0")
    connection.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
    connection.execute(f"PRAGMA journal_size_limit = {_WAL_LIMIT}")
    return connection


def _unmerged(path: Path) -> bool:
    """Whether committed content may still be in the write-ahead log beside the file."""
    try:
        return path.with_name(path.name + "-wal").stat().st_size > 0
    except FileNotFoundError:
        return False


def signature(path: Path) -> tuple[int, ...]:
    """Changes whenever the file at `path`, or the log beside it, is replaced or written; () if it is gone.

    The first two numbers say which file it is.
    """
    try:
        stat = path.stat()
    except OSError:
        return ()
    return (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, _unmerged(path))


def identity(path: Path) -> tuple[int, ...]:
    """Which file is at `path`, as the first numbers of its signature say; () if it is gone."""
    try:
        stat = path.stat()
    except OSError:
        return ()
    return (stat.st_dev, stat.st_ino)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn what SQLite says while reading `path` into one line."""
    try:
        yield
    except FAULTS as cause:
        raise _one_line(path, cause, writing=False) from cause


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what SQLite and the system say while writing `path` into one line."""
    try:
        yield
    except FAULTS as cause:
        raise _one_line(path, cause, writing=True) from cause
    except OSError as cause:
        raise StorageError(f"could not write {path}: {cause.strerror or cause}") from cause


_DAMAGE = (
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_ERROR,  # a table or column that should be there is not
    sqlite3.SQLITE_TOOBIG,
    sqlite3.SQLITE_MISMATCH,
)


def plain(cause: Exception) -> str:
    """What an error says, in one line of printable characters: SQLite quotes what it stumbled over."""
    said = " ".join("".join(sign if sign.isprintable() else " " for sign in str(cause)).split())
    return said if len(said) <= _LONGEST else f"{said[:_LONGEST]} …"


_LONGEST = 200


def _one_line(path: Path, cause: Exception, *, writing: bool) -> GalleryError | StorageError:
    said = plain(cause)
    code = getattr(cause, "sqlite_errorcode", 0) & 0xFF
    intact = "what was there before is intact"
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return GalleryError(f"{path} is being written by another process; try again when it is done")
    if code == sqlite3.SQLITE_FULL:
        return StorageError(f"could not write {path} (the disk is full: free some space); {intact}")
    undecoded = isinstance(cause, sqlite3.OperationalError) and not code  # text that is not UTF-8
    if isinstance(cause, DamageError | UnicodeDecodeError) or undecoded or code in _DAMAGE:
        return GalleryError(f"{path} is damaged ({said}); restore it from a copy or index the images again")
    if code == sqlite3.SQLITE_READONLY:
        return StorageError(f"could not write {path} (it is read-only: check its permissions); {intact}")
    if code == sqlite3.SQLITE_CANTOPEN:
        return GalleryError(f"could not open {path} (check the permissions of the file and its folder)")
    if code == sqlite3.SQLITE_IOERR and writing:
        return StorageError(f"could not write {path} ({said}: check the disk and its space); {intact}")
    return GalleryError(f"could not {'write' if writing else 'read'} {path}: {said}")
