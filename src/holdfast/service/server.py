"""The service as a process: galleries opened, an address bound, requests answered until a signal ends it."""

from __future__ import annotations

import signal
import socket
import tempfile
from collections.abc import Sequence
from pathlib import Path

import uvicorn

from holdfast.errors import ConfigError
from holdfast.service.app import create_app
from holdfast.service.desk import Desk
from holdfast.service.engine import Engine
from holdfast.service.guard import LOCAL, is_local
from holdfast.service.keys import KeyRing
from holdfast.service.limits import Limits
from holdfast.service.logs import log, set_up
from holdfast.service.pictures import QueryStore

DRAIN = 10
"""Seconds that requests under way have to end after a signal."""


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
    if keys is None and not is_local(host):
        raise ConfigError(
            f"{host} can be reached from other machines, so the service needs keys: make one with "
            "'holdfast key add FILE --name NAME', and start with --keys FILE"
        )
    ring = None if keys is None else KeyRing(keys)
    limits = limits or Limits()
    allowed = {*LOCAL, host, *hosts} if hosts or is_local(host) else None
    listener = _bound(host, port)
    with listener, tempfile.TemporaryDirectory(prefix="holdfast-queries-") as temporary:
        desk = Desk(
            Engine.open(galleries, models, writable=writable),
            limits,
            QueryStore(queries or Path(temporary), limits.cache),
        )
        set_up()
        desk.engine.warm()
        config = uvicorn.Config(
            create_app(desk, ring, hosts=allowed),
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=True,
            proxy_headers=False,
            ws="none",
            timeout_graceful_shutdown=DRAIN,
            h11_max_incomplete_event_size=32768,
        )
        log("listening", address=f"http://{_shown(host)}:{listener.getsockname()[1]}", keys=ring is not None)
        # The server raises the signals that ended it once more when it has ended: to be asked to stop is no failure.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)
        uvicorn.Server(config).run(sockets=[listener])


def _bound(host: str, port: int) -> socket.socket:
    """The address, taken before the galleries are opened: that can take long, and a wrong port should not."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except BaseException:
            listener.close()
            raise
        return listener
    except OSError as cause:
        raise ConfigError(
            f"could not listen at {host}:{port} ({cause.strerror or cause}); choose another --host or --port"
        ) from cause


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host
