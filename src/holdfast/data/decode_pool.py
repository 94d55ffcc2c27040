"""Decoding in other processes: a file that is made to do harm ends one of those, and not the service.

    pool = DecodePool()
    picture = pool.picture(content, embedder.spec, max_pixels=40_000_000)

Each process (`decode_worker`) has limits of memory and processor time for every picture. What comes back from it is
a shape and numbers, never code.
"""

from __future__ import annotations

import fcntl
import json
import math
import mmap
import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast import deadline
from holdfast.data.decode_worker import Budget
from holdfast.data.fit import Pixels
from holdfast.data.images import MAX_BYTES, MAX_PIXELS, Picture
from holdfast.errors import DecoderError, ImageError
from holdfast.spec import ImageSpec

ROOM = max(MAX_BYTES, 4 * MAX_PIXELS)
"""Bytes that a file or its pixels can take."""
KEPT = 4 * 2**20
"""Bytes of it that stay for the next file."""
LINE = 4096
"""Bytes of a message on the socket, at most."""
TURN = 0.05
"""Seconds after which a thread that waits looks whether anyone still wants its answer."""
START = 60.0
"""Seconds that a process has to start."""
_ENVIRONMENT = ("PATH", "LD_LIBRARY_PATH", "LANG", "SYSTEMROOT")
"""What a process is told of its surroundings: it needs no secrets."""
_TIME_REASON = "too large: it takes too much processor time to decode"


class DecodePool:
    """Up to `size` processes that decode, started when they are needed and replaced when they end.

    Threads may share it; one waits while all processes are busy. A deadline that runs in the thread holds here too:
    when it is over, the process is ended. `budget` is what one picture may take.
    """

    def __init__(self, size: int = 2, budget: Budget | None = None) -> None:
        self._free: queue.LifoQueue[_Worker | None] = queue.LifoQueue()
        self._size, self._closed = size, False
        self._budget = asdict(budget or Budget())
        for _ in range(size):
            self._free.put(None)

    def picture(self, content: bytes, spec: ImageSpec | None, *, max_pixels: int | None = None) -> Picture:
        """What `decode_picture` gives, or its ImageError."""
        described = None if spec is None else spec.describe()
        answer, pixels = self._ask(content, spec=described, max_pixels=max_pixels)
        stretch = answer.get("stretch")
        if spec is not None and pixels.shape != spec.shape:
            raise DecoderError(f"a decoder gave {pixels.shape} in place of {spec.shape}; try again")
        return Picture(pixels, float(stretch) if isinstance(stretch, float) else None)

    def small(self, content: bytes, side: int, *, max_pixels: int | None = None) -> NDArray[np.uint8]:
        """What `decode_small` gives, or its ImageError."""
        return self._ask(content, side=side, max_pixels=max_pixels)[1]

    def warm(self) -> None:
        """Start one process, so that the first picture does not wait for it."""
        with self._worker():
            pass

    def close(self) -> None:
        """End all processes, each when it has done what it is at."""
        self._closed = True
        for _ in range(self._size):
            if (worker := self._free.get()) is not None:
                worker.end()

    def _ask(
        self, content: bytes, *, spec: Any = None, side: int | None = None, max_pixels: int | None = None
    ) -> tuple[dict[str, Any], Pixels]:
        if not content:
            raise ImageError("empty file")
        if len(content) > MAX_BYTES:
            raise ImageError(f"too large: {len(content)} bytes")
        with self._worker() as worker:
            return worker.ask(content, spec=spec, side=side, max_pixels=max_pixels, budget=self._budget)

    @contextmanager
    def _worker(self) -> Iterator[_Worker]:
        """A process that nobody else uses; one that did not answer is ended."""
        worker = self._next()
        try:
            if worker is None or worker.ended():
                worker = None
                worker = _Worker()
            yield worker
        finally:
            if worker is not None and not worker.idle:
                worker.end()
                worker = None
            self._free.put(worker)

    def _next(self) -> _Worker | None:
        while not self._closed:
            deadline.check()
            try:
                return self._free.get(timeout=TURN)
            except queue.Empty:
                continue
        raise DecoderError("no picture is decoded any more: the service is ending")


class _Worker:
    """One process, the socket to it, and the memory that it shares with this one."""

    def __init__(self) -> None:
        self.idle = True
        """It can be asked; not so while it works, and where it did not answer or said that this was the last time."""
        file = _shared_file()
        try:
            self._shared = mmap.mmap(file, ROOM)
            self._line, other = socket.socketpair()
            self._line.settimeout(TURN)
            here = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
            with other:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "holdfast.data.decode_worker", str(file)],
                    stdin=other.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env={**here, "PYTHONPATH": os.pathsep.join(sys.path), "OPENBLAS_NUM_THREADS": "1"},
                    pass_fds=[file],
                    start_new_session=True,
                )
        except OSError as cause:
            raise DecoderError(
                f"could not start a process that decodes ({cause.strerror or cause})"
            ) from cause
        finally:
            os.close(file)
        try:
            with deadline.running(deadline.Deadline(START)):
                self._receive()
        except BaseException as cause:
            self.end()
            if isinstance(cause, Exception):
                raise DecoderError(f"a process that decodes did not start ({cause or 'it ended'})") from cause
            raise

    def ask(self, content: bytes, **described: Any) -> tuple[dict[str, Any], Pixels]:
        """What the process says of one file, and its pixels."""
        self._shared[: len(content)] = content
        answer = self._said({**described, "bytes": len(content)})
        if (error := answer.get("error")) is not None:
            self._free(len(content))
            raise ImageError(str(error))
        shape, kind = answer.get("shape"), answer.get("dtype")
        if not (isinstance(shape, list) and len(shape) == 3 and kind in ("uint8", "float32")):
            raise DecoderError("a decoder gave no pixels; try again")
        try:
            pixels = np.frombuffer(self._shared, dtype=kind, count=math.prod(shape)).reshape(shape).copy()
        except (TypeError, ValueError) as cause:
            raise DecoderError("a decoder gave no pixels; try again") from cause
        self._free(max(len(content), pixels.nbytes))
        return answer, pixels

    def _said(self, described: dict[str, Any]) -> dict[str, Any]:
        self.idle = False
        try:
            self._line.sendall(json.dumps(described).encode() + b"\n")
            answer = self._receive()
        except (EOFError, ConnectionError) as cause:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(1)
            slow = self._process.returncode == -signal.SIGPROF
            raise ImageError(_TIME_REASON if slow else "damaged: the decoder failed on it") from cause
        self.idle = not answer.get("last", True)
        return answer

    def _free(self, used: int) -> None:
        """Give memory back that a large file or picture took."""
        if used > KEPT and hasattr(mmap, "MADV_REMOVE"):
            self._shared.madvise(mmap.MADV_REMOVE, KEPT)

    def ended(self) -> bool:
        """Whether the process has ended by itself; what is left of it is then cleared away."""
        if self._process.poll() is None:
            return False
        self.end()
        return True

    def end(self) -> None:
        self._line.close()
        self._process.kill()
        self._process.wait()
        self._shared.close()

    def _receive(self) -> dict[str, Any]:
        said = b""
        while not said.endswith(b"\n"):
            try:
                more = self._line.recv(LINE)
            except TimeoutError:
                deadline.check()
                continue
            said += more
            if not more or len(said) > LINE:
                raise EOFError
        try:
            answer = json.loads(said)
        except ValueError as cause:
            raise EOFError from cause
        if not isinstance(answer, dict):
            raise EOFError
        return answer


def _shared_file() -> int:
    """A file of `ROOM` bytes, of which only what is written takes any; nobody can make it shorter (on Linux)."""
    if not hasattr(os, "memfd_create"):
        with tempfile.TemporaryFile(prefix="holdfast-pixels-") as file:
            os.ftruncate(file.fileno(), ROOM)
            return os.dup(file.fileno())
    found = os.memfd_create("holdfast-pixels", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(found, ROOM)
    fcntl.fcntl(found, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return found
