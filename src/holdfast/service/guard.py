"""Around every request: whose it may be, how long it may take, what is logged and measured, and no bare errors."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import secrets
import time
from collections.abc import Collection, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from holdfast.deadline import Deadline
from holdfast.errors import HoldfastError
from holdfast.service.address import LOCAL
from holdfast.service.callers import of_address, set_caller
from holdfast.service.limits import Limits
from holdfast.service.logs import log
from holdfast.service.metrics import Metrics
from holdfast.service.problems import (
    MEDIA_TYPE,
    EndingError,
    ForbiddenError,
    LongHeadersError,
    document,
    headers_of,
    status_of,
)

Message = MutableMapping[str, Any]

HEADERS_AT_MOST = 16_384
"""Bytes."""
LEFT = 499
"""How a request is counted whose sender was gone before it was answered (as nginx does)."""
_HOST = re.compile(r"(?:(?P<name>[A-Za-z0-9._-]+)|\[(?P<six>[0-9A-Fa-f:.]+)\])(?::[0-9]{1,5})?")
_SAFE = ("GET", "HEAD", "OPTIONS")
_METHODS = (*_SAFE, "POST", "PUT", "PATCH", "DELETE")
HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; "
    "img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
}


class Guard:
    """The outermost layer of the service.

    `hosts` are the names under which it may be asked for: a page elsewhere that has its own name point to this
    machine (DNS rebinding) is refused. None allows any, where keys protect it.
    """

    def __init__(
        self, app: Any, limits: Limits, metrics: Metrics, hosts: Collection[str] | None = LOCAL
    ) -> None:
        self._app, self._limits, self._metrics, self._hosts = app, limits, metrics, hosts

    async def __call__(self, scope: Message, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, status, sent, whole = time.perf_counter(), 0, 0, False
        number = secrets.token_hex(8)
        state = scope.setdefault("state", {})
        state.update(deadline=Deadline(self._limits.seconds), request=number)
        set_caller(of_address(scope["client"][0] if scope.get("client") else None))

        async def noted(message: Message) -> None:
            nonlocal status, sent, whole
            if message["type"] == "http.response.start":
                status = LEFT if state.get("left") else message["status"]
                given = {name.lower() for name, _ in message["headers"]}
                more = {**HEADERS, "cache-control": "no-store", "x-request-id": number}
                message["headers"] = [
                    *message["headers"],
                    *((k.encode(), v.encode()) for k, v in more.items() if k.encode() not in given),
                ]
            elif message["type"] == "http.response.body":
                sent += len(message.get("body", b""))
                whole = not message.get("more_body", False)
            await send(message)

        self._metrics.under_way.inc()
        try:
            self._check(scope)
            await self._app(scope, receive, noted)
        except HoldfastError as error:
            if status:
                raise
            await refuse(noted, status_of(error), str(error), headers_of(error))
        except asyncio.CancelledError:
            # The server ends, and this is the last that the task does; nobody is told of a mistake.
            if not status:
                await refuse(noted, 503, str(EndingError()), EndingError().headers)
        except Exception as error:
            log("failed", logging.ERROR, error, request=number, path=scope["path"])
            if not status:
                await refuse(noted, 500, mistake(number))
            elif not whole:
                raise
        finally:
            seconds = time.perf_counter() - start
            self._metrics.under_way.dec()
            self._note(scope, status or (LEFT if state.get("left") else 0), sent, seconds)

    def _check(self, scope: Message) -> None:
        if sum(len(name) + len(value) for name, value in scope["headers"]) > HEADERS_AT_MOST:
            raise LongHeadersError(f"the headers of a request have at most {HEADERS_AT_MOST:,} bytes here")
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        host = headers.get(b"host", "")
        name = _name(host)
        if (host and name is None) or (self._hosts is not None and name not in self._hosts):
            raise ForbiddenError(
                "the service does not answer to this host name (start it with --allow-host NAME)"
            )
        origin = headers.get(b"origin")
        if origin is not None and place_of(origin) != host.lower():
            raise ForbiddenError("requests of pages from elsewhere are refused")
        if scope["method"] not in _SAFE and headers.get(b"sec-fetch-site", "none") not in (
            "same-origin",
            "none",
        ):
            raise ForbiddenError("requests of pages from elsewhere are refused")

    def _note(self, scope: Message, status: int, sent: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", None) or "unknown"
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._metrics.requests.labels(route, method, str(status)).inc()
        self._metrics.seconds.labels(route).observe(seconds)
        client = scope.get("client")
        log(
            "request",
            logging.WARNING if status >= 500 else logging.INFO,
            request=scope["state"]["request"],
            method=method,
            path=scope["path"],
            status=status,
            ms=round(seconds * 1000, 2),
            sent=sent,
            client=None if client is None else client[0],
            key=scope["state"].get("key"),
        )


def mistake(number: str) -> str:
    """What is said of an error that nobody expected; the log has the rest under this number."""
    return f"the service made a mistake, noted as {number}; it goes on"


async def refuse(send: Any, status: int, detail: str, headers: dict[str, str] | None = None) -> None:
    """Send a problem, where no framework is there to do it."""
    body = json.dumps(document(status, detail)).encode()
    lines = {"content-type": MEDIA_TYPE, "content-length": str(len(body)), **(headers or {})}
    start = [(name.lower().encode(), value.encode()) for name, value in lines.items()]
    await send({"type": "http.response.start", "status": status, "headers": start})
    await send({"type": "http.response.body", "body": body})


def _name(host: str) -> str | None:
    """The name in a Host header: NAME, NAME:PORT or [IPv6]:PORT and nothing else; None where it is no such thing."""
    found = _HOST.fullmatch(host)
    return None if found is None else (found["name"] or found["six"]).lower()


def place_of(origin: str) -> str | None:
    """The host and port of an origin, as a Host header writes them; None where it is no address."""
    try:
        return urlsplit(origin).netloc.lower() or None
    except ValueError:
        return None
