"""The service as a process: galleries opened, an address bound, requests answered until a signal ends it."""

from __future__ import annotations

import asyncio
import signal
import socket
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn

from holdfast.service.address import LOCAL, check_address, is_local, listen
from holdfast.service.app import create_app
from holdfast.service.connections import Connection, Connections, Listener, check_files
from holdfast.service.desk import Desk
from holdfast.service.engine import Engine
from holdfast.service.guard import HEADERS_AT_MOST
from holdfast.service.keys import KeyRing
from holdfast.service.limits import Limits
from holdfast.service.logs import log, set_up
from holdfast.service.pictures import QueryStore

DRAIN = 10
"""Seconds that requests under way have to end after a signal."""

STOPPED = 5
"""Seconds that stopped work then has to notice it."""


def serve(
    galleries: Sequence[str],
    *,
    host: str = "127.0.0.1",
    port: int = 8080,
    keys: Path | None = None,
    models: Sequence[str] = (),
    writable: bool = False,
    hosts: Sequence[str] = (),
    queries: Path | None = None,
    limits: Limits | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT, then let requests under way end, and return.

    Beyond this machine it is served only with keys. `hosts` are further names by which it may be called;
    `queries` is a folder for pictures that were searched for, else they are gone when the service ends.
    """
    check_address(host, keys)
    ring = None if keys is None else KeyRing(keys)
    limits = limits or Limits()
    check_files(limits)
    allowed = {*LOCAL, host.lower(), *(name.lower() for name in hosts)} if hosts or is_local(host) else None
    listener = listen(host, port, Listener)
    with listener, tempfile.TemporaryDirectory(prefix="holdfast-queries-") as temporary:
        desk = Desk(
            Engine.open(galleries, models, writable=writable),
            limits,
            QueryStore(queries or Path(temporary), limits.cache),
        )
        set_up()
        desk.decoder.warm()
        desk.engine.warm()
        log("listening", address=f"http://{_shown(host)}:{listener.getsockname()[1]}", keys=ring is not None)
        # The server raises the signals that ended it once more when it has ended: to be asked to stop is no failure.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)
        Server(create_app(desk, ring, hosts=allowed), desk).run(sockets=[listener])


class Server(uvicorn.Server):
    """Answers requests until it is told to end; then each that is under way ends in its time, or is stopped."""

    def __init__(self, app: Any, desk: Desk) -> None:
        self._connections, self._desk = Connections(desk.limits), desk
        super().__init__(configured(app, self._connections))

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        for one in sockets or ():
            if isinstance(one, Listener):
                one.connections = self._connections
                one.keep_spare()
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # A connection that was accepted a moment ago is not among those that the server knows and asks to end.
        self._connections.ending = True
        stop = asyncio.get_running_loop().call_later(DRAIN, self._desk.stop)
        await super().shutdown(sockets)
        stop.cancel()


def configured(app: Any, connections: Connections | None = None) -> uvicorn.Config:
    """How the server itself is set up: it says nothing of itself, and trusts no header about who asks."""
    known = Connections(Limits()) if connections is None else connections
    return uvicorn.Config(
        app,
        http=partial(Connection, known),  # type: ignore[arg-type]
        loop="asyncio",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        timeout_graceful_shutdown=DRAIN + STOPPED,
        h11_max_incomplete_event_size=2 * HEADERS_AT_MOST,
    )


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host
