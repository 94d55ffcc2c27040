"""The process in which `DecodePool` decodes: files come in and pixels go out, within limits of memory and time.

Started as `python -m holdfast.data.decode_worker FILE` with a socket as its standard input and the number of an open
file that both sides map: a file's bytes lie there, and then its pixels; the socket carries a line of JSON about each.
It imports neither torch nor FAISS, writes no other file, and ends when the other end of the socket is closed.
"""

from __future__ import annotations

import json
import mmap
import os
import resource
import signal
import socket
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import AvifImagePlugin

from holdfast.data.fit import Pixels
from holdfast.data.images import decode_picture, decode_small
from holdfast.errors import ImageError
from holdfast.memory import give_back, keep_freed_memory
from holdfast.spec import ImageSpec

KEPT = 64 * 2**20
"""Bytes that decoders may leave behind before the process ends and another takes its place."""
_MEMORY_REASON = "too large: it takes too much memory to decode"
FILES = 16
"""Open files: more than a decoder needs."""


@dataclass(frozen=True)
class Budget:
    """What one picture may take: so much, and more for each pixel that its header announces."""

    memory: int = 96 * 2**20
    """Bytes."""
    memory_per_pixel: float = 24
    seconds: float = 2.0
    """Of the processor."""
    seconds_per_pixel: float = 2e-7
    """10 seconds in all for a picture of 40 million pixels."""


def main() -> None:
    """Decode until the other end of the socket is closed."""
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # A terminal sends it to everyone; the service ends this process.
    AvifImagePlugin.DEFAULT_MAX_THREADS = 1
    keep_freed_memory()  # within KEPT: a page that goes back to the system is zeroed before it comes again
    line = socket.socket(fileno=0)
    questions = line.makefile("rb")  # buffered: unbuffered, each byte of a line is a system call
    shared = mmap.mmap(int(sys.argv[1]), 0)
    usage = _Usage()
    for limit, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, FILES),
    ):
        resource.setrlimit(limit, (most, most))
    line.sendall(b"{}\n")
    while asked := questions.readline():
        answer = _answer(json.loads(asked), shared, usage)
        answer["last"] = answer.get("last", False) or usage.kept() > KEPT
        line.sendall(json.dumps(answer).encode() + b"\n")
        if answer["last"]:
            return


def _answer(asked: dict[str, Any], shared: mmap.mmap, usage: _Usage) -> dict[str, Any]:
    """What to say of the pixels, which are in `shared` then; `last`: the process is not to be used again."""
    content = shared[: asked["bytes"]]
    usage.start(Budget(**asked["budget"]))
    try:
        pixels, stretch = _decoded(asked, content, usage)
    except (ImageError, MemoryError) as error:
        usage.stop()
        short = isinstance(error, MemoryError) or isinstance(error.__cause__, MemoryError)
        return {"error": _MEMORY_REASON if short else str(error), "last": short}
    usage.stop()
    place = np.frombuffer(shared, dtype=pixels.dtype, count=pixels.size)
    place.reshape(pixels.shape)[...] = pixels
    return {"shape": pixels.shape, "dtype": pixels.dtype.name, "stretch": stretch}


def _decoded(asked: dict[str, Any], content: bytes, usage: _Usage) -> tuple[Pixels, float | None]:
    if asked["side"] is not None:
        small = decode_small(content, asked["side"], max_pixels=asked["max_pixels"], sized=usage.sized)
        return small, None
    spec = None if asked["spec"] is None else ImageSpec(**asked["spec"])
    picture = decode_picture(content, spec, max_pixels=asked["max_pixels"], sized=usage.sized)
    return picture.pixels, picture.stretch


class _Usage:
    """Holds a picture to its budget: too much memory is an error, too much time ends the process (SIGPROF)."""

    def __init__(self) -> None:
        try:
            self._statm: int | None = os.open("/proc/self/statm", os.O_RDONLY)
        except OSError:  # Not Linux: the processor's time is limited, memory is not.
            self._statm = None
        self._budget, self._first = Budget(), self._data()
        self._before = self._first

    def start(self, budget: Budget) -> None:
        self._budget, self._before = budget, self._data()
        self.sized(0)

    def sized(self, pixels: int) -> None:
        """The picture is known to have so many pixels."""
        budget = self._budget
        signal.setitimer(signal.ITIMER_PROF, budget.seconds + budget.seconds_per_pixel * pixels)
        if self._statm is not None:
            most = self._before + budget.memory + int(budget.memory_per_pixel * pixels)
            resource.setrlimit(resource.RLIMIT_DATA, (most, resource.RLIM_INFINITY))

    def stop(self) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    def kept(self) -> int:
        """Bytes more than when the process began, of which the C library gives back what it can where they are many."""
        if self._data() - self._first > KEPT:
            give_back()
        return self._data() - self._first

    def _data(self) -> int:
        """Bytes of private memory."""
        if self._statm is None:
            return 0
        return int(os.pread(self._statm, 200, 0).split()[5]) * resource.getpagesize()


if __name__ == "__main__":
    main()
