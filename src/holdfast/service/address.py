"""Where a service listens, and who can reach that; quick to import, so that a mistake is told at once."""

from __future__ import annotations

import ipaddress
import socket
from pathlib import Path
from typing import TypeVar

from holdfast.errors import ConfigError

Socket = TypeVar("Socket", bound=socket.socket)
LOCAL = ("localhost", "127.0.0.1", "::1")


def is_local(host: str) -> bool:
    """Whether an address to listen at can be reached from this machine alone."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_address(host: str, keys: Path | None) -> None:
    """Refuse to listen beyond this machine without keys."""
    if keys is None and not is_local(host):
        raise ConfigError(
            f"{host} can be reached from other machines, so the service needs keys: make one with "
            "'holdfast key add FILE --name NAME', and start with --keys FILE"
        )


def listen(host: str, port: int, kind: type[Socket]) -> Socket:
    """The address, as a socket of this kind. Taken before galleries are opened: a wrong port is told at once."""
    try:
        family, type_, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = kind(family, type_, protocol)
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
