"""Connections: how many there may be, of whom, and how long one may be open without asking for anything."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import socket
from contextlib import suppress
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from holdfast.errors import ConfigError
from holdfast.service.callers import of_address
from holdfast.service.limits import Limits
from holdfast.service.logs import log

FILES = 128
"""Open files that a service needs beside its connections, at least."""
ARRIVING = 64
"""Connections that are accepted before it is looked at whether they can stay."""
_SCARCE = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Connections:
    """All connections of a service; for the event loop's thread alone.

    Where there are too many, the one of the same address (or of the address with the most) that has been idle for
    longest makes room. Where none is idle, the new one is closed.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.arriving = 0
        self.ending = False
        self._of: dict[str, dict[Connection, None]] = {}
        self._idle: dict[str, dict[Connection, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, connection: Connection) -> bool:
        """Whether a new connection may stay."""
        who = connection.who
        if self.ending:
            return False
        if len(self._of.get(who, ())) >= self.limits.connections_of_one and not self._make_room(who):
            return False
        if self._count >= self.limits.connections:
            largest = max(self._of, key=lambda one: len(self._of[one]))
            if not self._make_room(largest):
                return False
        self._of.setdefault(who, {})[connection] = None
        self._count += 1
        self.idle(connection)
        return True

    def remove(self, connection: Connection) -> None:
        self.busy(connection)
        mine = self._of.get(connection.who, {})
        if connection in mine:
            del mine[connection]
            self._count -= 1
            if not mine:
                del self._of[connection.who]

    def idle(self, connection: Connection) -> None:
        """It waits for a request from now on."""
        self._idle.setdefault(connection.who, {})[connection] = None

    def busy(self, connection: Connection) -> None:
        """A request of it is under way."""
        waiting = self._idle.get(connection.who, {})
        waiting.pop(connection, None)
        if not waiting:
            self._idle.pop(connection.who, None)

    def _make_room(self, who: str) -> bool:
        oldest = next(iter(self._idle.get(who, ())), None)
        if oldest is None:
            return False
        self.remove(oldest)
        oldest.drop("too many connections")
        return True


class Connection(H11Protocol):
    """One connection: the head of a request, and the reading of an answer, have their time."""

    def __init__(self, connections: Connections, **options: Any) -> None:
        super().__init__(**options)
        self._all = connections
        self._waits: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._is_busy = False
        self.who = ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._all.arriving = max(0, self._all.arriving - 1)
        super().connection_made(transport)
        self.who = of_address(self.client[0] if self.client else None)
        if not self._all.add(self):
            self.drop("too many connections")
            return
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._all.remove(self)
        for timer in (self._waits, self._unread):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._unread is None:
            self._unread = self.loop.call_later(self._all.limits.seconds, self.drop, "answer not read")

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def drop(self, reason: str) -> None:
        """Close it, whatever was still to be said."""
        if not self.transport.is_closing():
            log("connection dropped", logging.WARNING, reason=reason, client=self.client and self.client[0])
            self.transport.abort()

    def _look(self) -> None:
        """Whether a request has begun or ended."""
        busy = self.cycle is not None and not self.cycle.response_complete
        if busy and self._all.ending:
            self.cycle.keep_alive = False
        if busy == self._is_busy:
            return
        self._is_busy = busy
        if not busy:
            self._all.idle(self)
            self._wait()
            return
        self._all.busy(self)
        if self._waits is not None:
            self._waits.cancel()
            self._waits = None

    def _wait(self) -> None:
        """Let the head of the next request come in its time, however little by little."""
        self._waits = self.loop.call_later(self._all.limits.head_seconds, self._late)

    def _late(self) -> None:
        if not self._is_busy:
            self.drop("no request in time")


class Listener(socket.socket):
    """A socket that accepts a few connections at a time, and closes those for which there is no file left."""

    connections: Connections | None = None
    _spare: int | None = None

    def accept(self) -> tuple[socket.socket, Any]:
        while True:
            if self.connections is not None and self.connections.arriving >= ARRIVING:
                raise BlockingIOError  # The next ones wait until those that are here have been looked at.
            try:
                line, address = super().accept()
            except OSError as error:
                if error.errno not in _SCARCE:
                    raise
                self._turn_away(error)
                continue
            if self.connections is not None:
                self.connections.arriving += 1
            return line, address

    def keep_spare(self) -> None:
        """Hold a file open in reserve, to be able to accept a connection, and close it, when there are no more."""
        if self._spare is None:
            with suppress(OSError):
                self._spare = os.open(os.devnull, os.O_RDONLY)

    def close(self) -> None:
        super().close()
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None

    def _turn_away(self, error: OSError) -> None:
        """Take one connection from the system's queue, where it would be announced again and again, and close it."""
        log("connection refused", logging.ERROR, reason=error.strerror)
        if self._spare is None:
            raise BlockingIOError
        os.close(self._spare)
        self._spare = None
        try:
            super().accept()[0].close()
        finally:
            self.keep_spare()


def check_files(limits: Limits) -> None:
    """Let the process open as many files as its connections need, or refuse to start."""
    needed = limits.connections + ARRIVING + FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        if hard != resource.RLIM_INFINITY and hard < needed:
            raise ConfigError(
                f"{limits.connections} connections need {needed} open files, and this process may have {hard}; "
                "start with fewer connections (--max-connections), or raise the limit (ulimit -n)"
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
