"""A disk, and a bucket, whose operations fail by plan: the nth one, once or from then on, with any error number."""

from __future__ import annotations

import builtins
import errno
import io
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

CODES = (errno.EIO, errno.EACCES, errno.ESTALE, errno.EMFILE, errno.ENOTCONN)
"""What a failing disk, mount or process limit says; none of it is about a file's bytes."""


class Faults:
    """Counts file operations, and fails number `at` (with `lasting`, all from then on)."""

    def __init__(self, at: int = 0, code: int = errno.EIO, *, lasting: bool = False) -> None:
        self.at, self.code, self.lasting = at, code, lasting
        self.count = 0
        self._lock = threading.Lock()

    def step(self) -> None:
        """One operation."""
        with self._lock:
            self.count += 1
            now = self.count
        if self.at and (now == self.at or (self.lasting and now > self.at)):
            raise OSError(self.code, os.strerror(self.code))

    def path(self, call: Callable[..., Any], top: Path) -> Callable[..., Any]:
        """`call`, which fails by plan on paths below `top`."""

        def failing(place: Any, *rest: Any, **named: Any) -> Any:
            if is_below(place, top):
                self.step()
            return call(place, *rest, **named)

        return failing


def is_below(place: object, top: Path) -> bool:
    """Whether a path is `top` or below it."""
    return isinstance(place, (str, Path)) and f"{place}/".startswith(f"{top}/")


class FailingFile:
    """An open file whose methods can fail."""

    def __init__(self, faults: Faults, file: Any) -> None:
        self._faults, self._file = faults, file

    def __getattr__(self, name: str) -> Any:
        if name in ("read", "readinto", "seek", "tell"):
            self._faults.step()
        return getattr(self._file, name)

    def __enter__(self) -> FailingFile:
        return self

    def __exit__(self, *why: object) -> None:
        self._file.close()


class FailingEntry:
    """An entry of a folder that can fail to say what it is."""

    def __init__(self, faults: Faults, entry: os.DirEntry[str]) -> None:
        self._faults, self._entry = faults, entry
        self.name, self.path = entry.name, entry.path

    def stat(self) -> os.stat_result:
        self._faults.step()
        return self._entry.stat()


@contextmanager
def failing_below(top: Path, faults: Faults) -> Iterator[None]:
    """The operating system as a program sees it while the disk under `top` fails."""
    scandir, open_handle = os.scandir, os.open
    handles: set[int] = set()

    @contextmanager
    def entries(place: Any) -> Iterator[Iterator[Any]]:
        with scandir(place) as found:
            yield (FailingEntry(faults, entry) for entry in found)

    def scan(place: Any = ".") -> Any:
        if not is_below(place, top):
            return scandir(place)
        faults.step()
        return entries(place)

    def open_one(place: Any, *rest: Any, **named: Any) -> int:
        handle = faults.path(open_handle, top)(place, *rest, **named)
        if is_below(place, top):
            handles.add(handle)
        return int(handle)

    def read_at(handle: int, *rest: Any, call: Callable[..., bytes] = os.pread) -> bytes:
        if handle in handles:
            faults.step()
        return call(handle, *rest)

    def opened(call: Callable[..., Any]) -> Callable[..., Any]:
        def failing(place: Any, *rest: Any, **named: Any) -> Any:
            file = faults.path(call, top)(place, *rest, **named)
            return FailingFile(faults, file) if is_below(place, top) else file

        return failing

    with ExitStack() as stack:
        stack.enter_context(patch.object(os, "stat", faults.path(os.stat, top)))
        stack.enter_context(patch.object(os, "lstat", faults.path(os.lstat, top)))
        stack.enter_context(patch.object(os, "scandir", scan))
        stack.enter_context(patch.object(os, "open", open_one))
        stack.enter_context(patch.object(os, "pread", read_at))
        stack.enter_context(patch.object(io, "open", opened(io.open)))
        stack.enter_context(patch.object(builtins, "open", opened(builtins.open)))
        yield


@contextmanager
def failing_bucket(faults: Faults) -> Iterator[None]:
    """A connection that fails when something is asked for, or while the answer is read."""
    from botocore.httpsession import URLLib3Session
    from botocore.response import StreamingBody

    send, read = URLLib3Session.send, StreamingBody.read

    def asked(session: Any, request: Any) -> Any:
        faults.step()
        return send(session, request)

    def body(stream: Any, amt: int | None = None) -> Any:
        faults.step()
        return read(stream, amt)

    with ExitStack() as stack:
        stack.enter_context(patch.object(URLLib3Session, "send", asked))
        stack.enter_context(patch.object(StreamingBody, "read", body))
        yield
