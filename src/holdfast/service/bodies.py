"""The bodies of requests: how large one may be, how long it may take, and how many bytes of all are held at once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import MutableMapping
from typing import Any

from holdfast.service.callers import caller
from holdfast.service.limits import Limits
from holdfast.service.problems import BusyError, SlowSenderError, TooLargeError

Message = MutableMapping[str, Any]


class Room:
    """Bytes that bodies may take, of which one caller may take half; for the event loop's thread alone."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken: Counter[str] = Counter()

    @property
    def taken(self) -> int:
        return self._taken.total()

    def take(self, who: str, count: int) -> None:
        if self.taken + count > self._most or self._taken[who] + count > self._most // 2:
            raise BusyError(
                "the service is busy: it holds as many bytes of requests as it may; try again in a moment",
                headers={"Connection": "close"},
            )
        self._taken[who] += count

    def give_back(self, who: str, count: int) -> None:
        self._taken[who] -= count
        if self._taken[who] <= 0:
            del self._taken[who]


class BodyLimit:
    """Bodies are counted as they arrive, whatever their length header says, and must arrive in time.

    Room for a body is taken before any of it is read, as much as its length header says, and more as it arrives; it
    is given back when the request is answered. Once a body is there, the end of the connection is the end of the
    request's time: its work stops.
    """

    def __init__(self, app: Any, limits: Limits) -> None:
        self._app, self._limits = app, limits
        self.room = Room(limits.bodies * limits.bytes)

    async def __call__(self, scope: Message, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        deadline, arrived, held, who = scope["state"]["deadline"], 0, 0, ""
        ended: asyncio.Task[Message] | None = None

        async def end() -> Message:
            message: Message = await receive()
            scope["state"]["left"] = True
            deadline.cancel()
            return message

        def hold(count: int) -> None:
            nonlocal held, who
            if count > held:
                who = who or caller()
                self.room.take(who, count - held)
                held = count

        async def counted() -> Message:
            nonlocal arrived, ended
            if ended is not None:
                return await asyncio.shield(ended)
            hold(declared)
            try:
                message: Message = await asyncio.wait_for(receive(), deadline.left)
            except TimeoutError:
                raise SlowSenderError(
                    f"the request did not arrive within {self._limits.seconds:g} seconds"
                ) from None
            if message["type"] == "http.disconnect":
                scope["state"]["left"] = True
            elif message["type"] == "http.request":
                arrived += len(message.get("body", b""))
                if arrived > self._limits.bytes:
                    raise too_many_bytes(self._limits)
                hold(arrived)
                if arrived and not message.get("more_body", False):
                    ended = asyncio.create_task(end())
            return message

        length = dict(scope["headers"]).get(b"content-length", b"0")
        declared = int(length) if length.isdigit() and len(length) < 20 else 0
        if declared > self._limits.bytes or len(length) >= 20:
            raise too_many_bytes(self._limits)
        try:
            await self._app(scope, counted, send)
        finally:
            if held:
                self.room.give_back(who, held)
            if ended is not None:
                ended.cancel()


def too_many_bytes(limits: Limits) -> TooLargeError:
    """The refusal of a body that is too long; the connection is closed, the rest is not read."""
    return TooLargeError(
        f"the request is larger than the {limits.bytes:,} bytes that are taken; send a smaller picture, or fewer",
        headers={"Connection": "close"},
    )
