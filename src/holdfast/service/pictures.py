"""Pictures: those that were searched for, kept for a while by their digest, and small ones to look at."""

from __future__ import annotations

import hashlib
import io
import re
import threading
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from holdfast.data.fit import to_image
from holdfast.errors import StorageError

SMALLEST, LARGEST = 16, 1024
"""Sides of a picture that is shown."""


def digest_of(content: bytes) -> str:
    """BLAKE2b of 128 bits, in hex: what a gallery keeps of its pictures too."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def shown(pixels: NDArray[np.uint8]) -> tuple[bytes, str]:
    """A picture for a browser, and its media type; encoded anew, so that nothing is hidden in it."""
    image = to_image(pixels)
    buffer = io.BytesIO()
    if image.mode == "L" or image.width * image.height <= 64 * 64:
        image.save(buffer, "PNG")
        return buffer.getvalue(), "image/png"
    image.save(buffer, "JPEG", quality=85)
    return buffer.getvalue(), "image/jpeg"


class QueryStore:
    """Uploaded pictures as they were sent, under their digests; the one not used for longest makes room.

    Threads may share it. A folder that is there already goes on being used.
    """

    def __init__(self, folder: Path, most: int) -> None:
        self._folder, self._most = folder, most
        self._lock = threading.Lock()
        self._sizes: OrderedDict[str, int] = OrderedDict()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for path in sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime):
                if re.fullmatch("[0-9a-f]{32}", path.name):
                    self._sizes[path.name] = path.stat().st_size
                elif path.suffix == ".part":
                    path.unlink()
        except OSError as cause:
            raise StorageError(f"could not use the folder {folder}: {cause.strerror or cause}") from cause
        self._total = sum(self._sizes.values())

    def keep(self, content: bytes) -> str:
        """The digest under which the picture can be asked for from now on, if the disk lets it."""
        digest = digest_of(content)
        with self._lock:
            if digest in self._sizes:
                self._sizes.move_to_end(digest)
                return digest
        part = self._folder / f"{digest}.{threading.get_ident()}.part"
        try:
            part.write_bytes(content)
            part.replace(self._folder / digest)
        except OSError:  # A search is not refused because its picture cannot be shown again.
            with suppress(OSError):
                part.unlink()
            return digest
        with self._lock:
            if digest in self._sizes:  # Another thread was given the same picture meanwhile.
                return digest
            self._sizes[digest] = len(content)
            self._total += len(content)
            while self._total > self._most and len(self._sizes) > 1:
                oldest, size = self._sizes.popitem(last=False)
                self._total -= size
                with suppress(OSError):
                    (self._folder / oldest).unlink()
        return digest

    def read(self, digest: str) -> bytes | None:
        """The picture; None where it is not known, or was dropped."""
        with self._lock:
            if digest not in self._sizes:
                return None
            self._sizes.move_to_end(digest)
        with suppress(OSError):
            content = (self._folder / digest).read_bytes()
            return content if digest_of(content) == digest else None
        return None
