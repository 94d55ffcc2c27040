"""Downloading one file whose SHA-256 is known; what arrives under its name is that file, whole."""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import DataError
from holdfast.files import atomic_path, sha256_file, storage_error
from holdfast.progress import bar

_TRIES = 4
_PAUSE = 0.5
_TIMEOUT = 20.0
_PIECE = 1 << 16


@dataclass(frozen=True)
class RemoteFile:
    """A file on the web and what it must be."""

    url: str
    size: int
    sha256: str

    @property
    def name(self) -> str:
        return self.url.rsplit("/", 1)[-1]


def download(file: RemoteFile, folder: Path) -> Path:
    """`file` in `folder`. A transfer that was cut, now or in an earlier run, goes on where it stopped.

    Until it is complete and its checksum is right, it is called `NAME.part`.
    """
    path, part = folder / file.name, folder / f"{file.name}.part"
    if path.is_file() and sha256_file(path) == file.sha256:
        return path
    folder.mkdir(parents=True, exist_ok=True)
    resumed = _transfer(file, part)
    if sha256_file(part) != file.sha256 and resumed:
        # The kept beginning may be of another file; only a whole transfer is a fair test.
        part.unlink()
        _transfer(file, part)
    found = sha256_file(part)
    if found != file.sha256:
        part.unlink()
        raise DataError(
            f"{file.url} has the wrong checksum ({found[:12]}, not {file.sha256[:12]}); nothing was kept"
        )
    with atomic_path(path) as temporary:
        part.rename(temporary)
    return path


def _transfer(file: RemoteFile, part: Path) -> bool:
    """Bring `part` to the full size; whether it went on from an earlier beginning."""
    if part.exists() and part.stat().st_size > file.size:
        part.unlink()
    resumed = part.exists()
    for attempt in range(1, _TRIES + 1):
        try:
            if not part.exists() or part.stat().st_size < file.size:
                _go_on(file, part)
            return resumed
        except urllib.error.HTTPError as cause:
            cause.close()
            reason = f"the server said {cause.code} {cause.reason}"
            if 400 <= cause.code < 500 and cause.code not in (408, 429):
                raise DataError(f"could not download {file.url}: {reason}") from cause
        except (OSError, http.client.HTTPException) as cause:
            reason = str(getattr(cause, "reason", cause)) or type(cause).__name__
        if attempt < _TRIES:
            time.sleep(_PAUSE * 2 ** (attempt - 1))
    raise DataError(f"could not download {file.url} in {_TRIES} tries: {reason}")


def _go_on(file: RemoteFile, part: Path) -> None:
    start = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "holdfast", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    request = urllib.request.Request(file.url, headers=headers)
    if request.type not in ("http", "https"):
        raise DataError(f"{file.url} is not a web address")
    with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:
        goes_on = answer.status == 206 and str(answer.headers["Content-Range"]).startswith(f"bytes {start}-")
        start = start if goes_on else 0
        with open(part, "ab" if goes_on else "wb") as handle, bar(file.name, file.size, start) as advance:
            while piece := answer.read(_PIECE):
                start += len(piece)
                if start > file.size:
                    part.unlink()
                    raise DataError(
                        f"{file.url} is longer than the {file.size} bytes it should be; nothing was kept"
                    )
                try:
                    handle.write(piece)
                    handle.flush()
                except OSError as cause:
                    raise storage_error(part, cause) from cause
                advance(len(piece))
    if start < file.size:
        raise http.client.HTTPException(f"it ended after {start} of {file.size} bytes")
