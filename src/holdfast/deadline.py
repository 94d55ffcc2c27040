"""Work that can be stopped: long loops ask now and then whether whoever wants the answer still waits.

    with running(Deadline(30)):
        search(..., certify=threat)          # OutOfTimeError when 30 seconds are over

Nothing is stopped where no deadline is running, which is everywhere but in a service.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from holdfast.errors import OutOfTimeError

_running: ContextVar[Deadline | None] = ContextVar("deadline", default=None)


class Deadline:
    """A moment after which work is to stop; any thread may bring it forward to now."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds that are left, 0 at least."""
        return max(0.0, self._end - time.monotonic())

    def cancel(self) -> None:
        """Stop at the next check: nobody waits for the answer."""
        self._end = -math.inf

    def check(self) -> None:
        if time.monotonic() > self._end:
            raise OutOfTimeError(f"the work took longer than {self.seconds:g} seconds and was stopped")


@contextmanager
def running(deadline: Deadline) -> Iterator[None]:
    """`check` inside the block, in this thread, is about this deadline."""
    token = _running.set(deadline)
    try:
        yield
    finally:
        _running.reset(token)


def check() -> None:
    """Raise OutOfTimeError if the running deadline is over; asked once in each turn of a long loop."""
    deadline = _running.get()
    if deadline is not None:
        deadline.check()
