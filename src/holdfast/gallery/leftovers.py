"""Files beside a gallery: the pictures that were uploaded to it, and what killed processes left there.

An upload writes its picture before the gallery says so, and a removal drops it after: a process that is killed in
between leaves a picture that no item has, or a temporary file. Only a sound gallery is swept, and never while an
upload is under way: whoever uploads holds a lock on the folder, which the system lets go of when a process ends.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from holdfast.files import storage_error
from holdfast.gallery.gallery import Gallery
from holdfast.gallery.values import Item

IDLE = 3600.0
"""Seconds without a change after which a temporary file beside a gallery is a left one: copies write all the time."""

_PICTURE = re.compile("[0-9a-f]{32}-[0-9a-f]{32}")


def pictures_of(gallery: Path | str) -> Path:
    """The folder of the pictures that were uploaded to a gallery."""
    return Path(f"{gallery}.images")


def picture_name(id: str, digest: str) -> str:
    """What the picture of an item is called there."""
    return f"{hashlib.blake2b(id.encode(), digest_size=16).hexdigest()}-{digest}"


def is_picture(path: Path) -> bool:
    """Whether a file is called as an uploaded picture is."""
    return _PICTURE.fullmatch(path.name) is not None


@contextmanager
def uploading(folder: Path) -> Iterator[None]:
    """Nothing in `folder` is swept during the block."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
    except OSError as cause:
        raise storage_error(folder, cause) from cause
    try:
        fcntl.flock(handle, fcntl.LOCK_SH)
        yield
    finally:
        os.close(handle)


def sweep(path: Path) -> list[str]:
    """Remove what killed processes left beside the gallery at `path`, which is sound; a line for each file."""
    lines = [_removed(file, "a temporary file") for file in _temporary(path)]
    folder = pictures_of(path)
    with suppress(FileNotFoundError, NotADirectoryError):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            lines += _sweep_pictures(path, folder)
        except BlockingIOError:
            lines.append(f"{folder} was left alone: a picture is being uploaded")
        finally:
            os.close(handle)
    return lines


def _temporary(path: Path) -> list[Path]:
    """The copies beside a gallery that nobody writes any more."""
    found = []
    for file in sorted(path.parent.glob(f".{_literal(path.name)}.*.tmp*")):
        with suppress(OSError):
            if time.time() - file.stat().st_mtime > IDLE:
                found.append(file)
    return found


def _sweep_pictures(path: Path, folder: Path) -> list[str]:
    with Gallery.open(path, readonly=True) as gallery:
        wanted = {name for item in gallery.catalogue().values() for name in _names(item)}
    lines = []
    for file in sorted(folder.iterdir()):
        if file.name.startswith(".") and file.suffix == ".tmp":
            lines.append(_removed(file, "a temporary file"))
        elif is_picture(file) and file.name not in wanted:
            lines.append(_removed(file, "a picture that no item has"))
    return lines


def _names(item: Item) -> Iterator[str]:
    """What the picture of an item may be called, wherever the gallery is now."""
    if item.path is not None:
        yield Path(item.path).name
    if item.digest is not None:
        yield picture_name(item.id, item.digest)


def _removed(file: Path, what: str) -> str:
    try:
        file.unlink()
    except OSError as cause:
        return f"{file} ({what}) could not be removed: {cause.strerror or cause}"
    return f"removed {file}: {what}"


def _literal(name: str) -> str:
    """A name in which no character stands for others in a pattern."""
    return re.sub(r"([*?\[])", r"[\1]", name)
