"""Where the files of a data set are: a folder, an uncompressed tar read in place, or a bucket."""

from __future__ import annotations

import errno
import os
import stat
import tarfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from holdfast.errors import DataError

_COMPRESSED = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"PK\x03\x04": "zip",
}


IN_ARCHIVE = "!/"
"""Between the path of a tar and the name of a member, in the place of a file."""


@dataclass(frozen=True)
class Stored:
    """What is known of a file before it is read. `place` is where its bytes begin in an archive."""

    size: int
    modified: int
    place: int = 0


class Source(ABC):
    """Named files that any thread may read in any order. Names are relative, with forward slashes."""

    is_archive: bool = False

    def __init__(self, path: Path | str, files: Mapping[str, Stored]) -> None:
        self.path = path
        self.files = files

    @abstractmethod
    def read(self, name: str) -> bytes:
        """All bytes of one file. OSError when that fails."""

    def close(self) -> None:  # noqa: B027 - a folder has nothing to close
        """Let go of what is open; the source cannot be read afterwards."""

    def text(self, name: str) -> str:
        """A small text file of the data set's own description."""
        try:
            return self.read(name).decode("utf-8")
        except (KeyError, OSError, UnicodeDecodeError) as cause:
            raise DataError(f"could not read {name} in {self.path}; get the data set again") from cause

    @abstractmethod
    def stamp(self) -> str:
        """Changes whenever the source as a whole is another one."""

    @abstractmethod
    def place(self, name: str) -> str:
        """Where the file is, for whoever looks for it later."""

    def covers(self, place: str) -> bool:
        """Whether a file at that place, were it still there, would surely be one of `files`."""
        return False

    def root_of(self, *markers: str) -> str | None:
        """The folder (with its slash, or "") that holds all `markers`: the one nearest the top."""
        ends = [name for name in self.files if name == markers[0] or name.endswith("/" + markers[0])]
        for name in sorted(ends, key=lambda name: (name.count("/"), name)):
            root = name.removesuffix(markers[0])
            if all(root + marker in self.files for marker in markers):
                return root
        return None

    def __enter__(self) -> Source:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class FolderSource(Source):
    """The regular files below a folder."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, by_name(_walk(path)))
        self._top = path

    def read(self, name: str) -> bytes:
        return (self._top / name).read_bytes()

    def stamp(self) -> str:
        return str(self._top.resolve())

    def place(self, name: str) -> str:
        return str(self._top.resolve() / name)


class TarSource(Source):
    """The regular files inside an uncompressed tar. Nothing is extracted, and links are not followed."""

    is_archive = True

    def __init__(self, path: Path) -> None:
        super().__init__(path, by_name(_index(path)))
        self._place = path.resolve()
        self._modified = path.stat().st_mtime_ns
        self._handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self, name: str) -> bytes:
        stored = self.files[name]
        pieces, at, left = [], stored.place, stored.size
        while left:
            piece = os.pread(self._handle, left, at)
            if not piece:
                raise OSError(f"{self.path} ends inside {name}")
            pieces.append(piece)
            at, left = at + len(piece), left - len(piece)
        return b"".join(pieces)

    def stamp(self) -> str:
        return f"{self._place} {self._modified}"

    def place(self, name: str) -> str:
        return f"{self._place}{IN_ARCHIVE}{name}"

    def covers(self, place: str) -> bool:
        return place.startswith(f"{self._place}{IN_ARCHIVE}")

    def close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def open_source(location: Path | str) -> Source:
    """The folder, tar or bucket at `location`, or one line that says what it should have been."""
    from holdfast.data import bucket

    if bucket.is_bucket(location):
        return bucket.BucketSource(str(location))
    path = Path(location)
    try:
        if path.is_dir():
            return FolderSource(path)
        if not path.exists():
            raise DataError(f"there is no folder or tar at {path}; check the path")
        if not path.is_file():
            raise DataError(f"{path} is neither a folder nor a tar of images; name one of those")
        with open(path, "rb") as handle:
            start = handle.read(8)
        for magic, kind in _COMPRESSED.items():
            if start.startswith(magic):
                raise DataError(f"{path} is compressed ({kind}) and cannot be read in place; unpack it first")
        return TarSource(path)
    except tarfile.TarError as cause:
        raise DataError(
            f"{path} is not a whole tar of images ({cause}); name a folder or get the file again"
        ) from cause
    except OSError as cause:
        what = cause.filename or path
        raise DataError(f"could not open {what}: {cause.strerror}; check its permissions") from cause


def is_gone(cause: OSError) -> bool:
    """Whether a file is not there. Any other failure is of the disk or the system, and says nothing about the file."""
    return cause.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


def unreadable(place: str, cause: OSError) -> DataError:
    """One line for a disk, mount or permission that failed while `place` was read."""
    reason = cause.strerror or str(cause)
    return DataError(
        f"could not read {place}: {reason}; check the disk, its mount and your permissions, then try again"
    )


def by_name(files: Iterator[tuple[str, Stored]]) -> dict[str, Stored]:
    """Files in the order of their names; of a name that an archive holds twice, the last, as tar does."""
    found = dict(files)
    return {name: found[name] for name in sorted(found)}


def _index(path: Path) -> Iterator[tuple[str, Stored]]:
    with open(path, "rb") as handle:
        length = os.fstat(handle.fileno()).st_size
        with tarfile.open(fileobj=handle, mode="r:") as archive:
            for member in archive:
                name = member.name.removeprefix("./")
                if not member.isreg() or member.issparse() or not is_inside(name):
                    continue
                if member.offset_data + member.size > length:
                    raise tarfile.ReadError(f"it ends inside {name}")
                yield name, Stored(member.size, int(member.mtime), member.offset_data)
            end = archive.offset
        # tarfile takes a cut between two members for the end; a whole archive says where it ends, in zeros.
        handle.seek(end)
        if handle.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
            raise tarfile.ReadError("it has no end")


def is_inside(name: str) -> bool:
    """Whether a member's name stays below the archive's top."""
    return bool(name) and not name.startswith("/") and ".." not in name.split("/")


def _walk(top: Path) -> Iterator[tuple[str, Stored]]:
    """Every regular file below `top`. Linked folders are entered, each real folder once."""
    entered: set[tuple[int, int]] = set()
    pending = [(top, "")]
    while pending:
        folder, prefix = pending.pop()
        status = folder.stat()
        if (status.st_dev, status.st_ino) in entered:
            continue
        entered.add((status.st_dev, status.st_ino))
        with os.scandir(folder) as entries:
            for entry in entries:
                try:
                    status = entry.stat()
                except OSError as cause:
                    if not is_gone(cause):
                        raise
                    # A link to nothing is listed, so that reading it fails by name.
                    yield prefix + entry.name, Stored(0, 0)
                    continue
                if stat.S_ISDIR(status.st_mode):
                    pending.append((Path(entry.path), f"{prefix}{entry.name}/"))
                elif stat.S_ISREG(status.st_mode):
                    yield prefix + entry.name, Stored(status.st_size, status.st_mtime_ns)
