"""Writing files so that a reader sees the old content or the new, never a part of either."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from holdfast.errors import RunError, StorageError

_FULL = {errno.ENOSPC, errno.EDQUOT}


def storage_error(path: Path, cause: OSError) -> StorageError:
    """`cause`, met while writing `path`, as one line for the user."""
    if cause.errno in _FULL:
        why = "the disk is full: free some space and run the command again"
    else:
        why = cause.strerror or str(cause)
    return StorageError(f"could not write {path} ({why}); what was there before is intact")


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A temporary path beside `path` that takes its place only if the block ends without error.

    The content is flushed to the disk before the rename, so a crash at any moment leaves `path`
    either as it was or complete.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        with open(temporary, "rb+") as handle:
            os.fsync(handle.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
    except OSError as cause:
        raise storage_error(path, cause) from cause
    finally:
        with suppress(OSError):
            temporary.unlink()


def atomic_write(path: Path, content: str | bytes) -> None:
    """Write `content` to `path` in one step (see `atomic_path`)."""
    data = content.encode() if isinstance(content, str) else content
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)


def refuse_other(path: Path, starts: bytes, what: str) -> None:
    """An error where `path` is there and does not begin as such a file does: nothing else is overwritten."""
    if not path.exists():
        return
    if path.is_dir():
        raise StorageError(f"{path} is a folder; name a file for the {what}")
    with open(path, "rb") as handle:
        begun = handle.read(64 + len(starts))
    if begun and starts not in begun:
        raise StorageError(f"{path} is there and is no {what}; choose another name, or remove it")


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256_file(path: Path) -> str:
    """The SHA-256 of a file's content, in hex, read in pieces."""
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


@contextmanager
def exclusive(folder: Path, doing: str) -> Iterator[None]:
    """Hold `folder` for this process: a second one is refused with one clear line.

    The operating system lets go of the lock when the process ends, however it ends.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = open(folder / ".lock", "w")  # noqa: SIM115
    except OSError as cause:
        raise storage_error(folder, cause) from cause
    with lock as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as cause:
            raise RunError(
                f"{folder} is in use by another process ({doing}); wait for it or choose another"
            ) from cause
        for left_behind in folder.glob(".*.tmp"):  # by a process that was killed while it wrote
            left_behind.unlink(missing_ok=True)
        yield
