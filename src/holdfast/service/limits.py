"""What one request may ask for, and how many may be at it: everything a stranger could exhaust has a bound."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, MutableMapping
from concurrent.futures import Executor
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, TypeVar

from holdfast.deadline import Deadline, running
from holdfast.errors import ConfigError, OutOfTimeError
from holdfast.service.problems import BusyError, SlowSenderError, TooLargeError

T = TypeVar("T")
Message = MutableMapping[str, Any]

GRACE = 0.5
"""Seconds that work which notices its deadline by itself has to say so."""


@dataclass(frozen=True)
class Limits:
    """The bounds of a service."""

    k: int = 1000
    """Hits of one search."""
    bytes: int = 32 * 2**20
    """Of a request's body."""
    pixels: int = 40_000_000
    """Of one picture, told from its header, before anything is decoded."""
    batch: int = 64
    """Pictures of one batch search."""
    attack_steps: int = 200
    attack_pixels: int = 4_000_000
    """Of a picture that a live attack alters in its own size: its gradients are as large."""
    seconds: float = 30.0
    """From the first byte of a request to its answer."""
    waiting: int = 128
    """Plain searches under way or waiting; one more is refused."""
    heavy: int = max(1, (os.cpu_count() or 2) // 2)
    """Certified searches, attacks and writes that are worked on at once, each."""
    heavy_waiting: int = 16
    """Those under way or waiting, each."""
    cache: int = 256 * 2**20
    """Bytes of pictures that were searched for and are kept to be shown again."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value > 0:
                raise ConfigError(f"the limit '{name}' is more than 0, not {value}")


class Gate:
    """At most so many inside; for the event loop's thread alone."""

    def __init__(self, name: str, most: int) -> None:
        self.name, self.most, self.inside = name, most, 0

    def enter(self) -> None:
        if self.inside >= self.most:
            raise BusyError(
                f"the service is busy: {self.inside} requests for {self.name} are under way; try again in a moment"
            )
        self.inside += 1

    def leave(self) -> None:
        self.inside -= 1


class Workers:
    """Threads for one kind of work, and a bounded queue before them."""

    def __init__(self, name: str, pool: Executor, most: int) -> None:
        self.gate = Gate(name, most)
        self._pool = pool
        self._running: set[Deadline] = set()

    async def run(self, deadline: Deadline, work: Callable[[], T]) -> T:
        """What `work` gives, in a thread in which the deadline is running.

        Work that does not notice its deadline is left behind when it has passed: who asked is answered, and its
        place stays taken until it really ends.
        """
        self.gate.enter()
        context = copy_context()

        def stoppable() -> T:
            with running(deadline):
                deadline.check()
                return work()

        future = asyncio.get_running_loop().run_in_executor(self._pool, context.run, stoppable)
        self._running.add(deadline)
        future.add_done_callback(lambda done: self._ended(done, deadline))
        try:
            return await asyncio.wait_for(asyncio.shield(future), deadline.left + GRACE)
        except TimeoutError:
            raise OutOfTimeError(
                f"the work took longer than {deadline.seconds:g} seconds and was stopped"
            ) from None
        except asyncio.CancelledError:
            deadline.cancel()
            raise

    def stop(self) -> None:
        """Stop everything under way at its next check."""
        for deadline in self._running:
            deadline.cancel()

    def _ended(self, future: asyncio.Future[T], deadline: Deadline) -> None:
        self.gate.leave()
        self._running.discard(deadline)
        if not future.cancelled():
            future.exception()  # Told to whoever waits; if nobody does any more, it is no news.


class BodyLimit:
    """Bodies are counted as they arrive, whatever their length header says, and must arrive in time.

    Once a body is there, the end of the connection is the end of the request's time: its work stops.
    """

    def __init__(self, app: Any, limits: Limits) -> None:
        self._app, self._limits = app, limits

    async def __call__(self, scope: Message, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        deadline, taken = scope["state"]["deadline"], 0
        ended: asyncio.Task[Message] | None = None

        async def end() -> Message:
            message: Message = await receive()
            deadline.cancel()
            return message

        async def counted() -> Message:
            nonlocal taken, ended
            if ended is not None:
                return await asyncio.shield(ended)
            try:
                message: Message = await asyncio.wait_for(receive(), deadline.left)
            except TimeoutError:
                raise SlowSenderError(
                    f"the request did not arrive within {self._limits.seconds:g} seconds"
                ) from None
            if message["type"] == "http.request":
                taken += len(message.get("body", b""))
                if taken > self._limits.bytes:
                    raise too_many_bytes(self._limits)
                if taken and not message.get("more_body", False):
                    ended = asyncio.create_task(end())
            return message

        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > self._limits.bytes:
            raise too_many_bytes(self._limits)
        try:
            await self._app(scope, counted, send)
        finally:
            if ended is not None:
                ended.cancel()


def too_many_bytes(limits: Limits) -> TooLargeError:
    """The refusal of a body that is too long; the connection is closed, the rest is not read."""
    return TooLargeError(
        f"the request is larger than the {limits.bytes:,} bytes that are taken; send a smaller picture, or fewer",
        headers={"Connection": "close"},
    )
