"""Who asks: the name of a key, or an address where there are no keys. Queues, budgets and rates are by caller."""

from __future__ import annotations

import ipaddress
import math
import time
from contextvars import ContextVar
from dataclasses import dataclass

from holdfast.service.keys import Key
from holdfast.service.problems import TooManyError

DAY = 86_400
BURST = 5
"""Seconds' worth of requests that a key may make at once."""

_caller: ContextVar[str] = ContextVar("caller", default="")


def caller() -> str:
    """Whose request this is, in the task that answers it."""
    return _caller.get()


def set_caller(name: str) -> None:
    """From here on the request counts as this caller's."""
    _caller.set(name)


def of_address(address: str | None) -> str:
    """One caller for each IPv4 address, and for each IPv6 network of 64 bits, which one machine has to itself."""
    try:
        found = ipaddress.ip_address(address or "")
    except ValueError:
        return f"address {address}"
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is None:
        return f"address {ipaddress.ip_network((found, 64), strict=False)}"
    return f"address {getattr(found, 'ipv4_mapped', None) or found}"


def of_key(name: str) -> str:
    """The caller who has this key, from wherever he asks."""
    return f"key {name}"


@dataclass
class _Spent:
    """What a key has used: `room` requests may come at once, and `today` were made on `day` (UTC, since 1970)."""

    room: float
    seen: float
    day: int = 0
    today: int = 0


class Rates:
    """How often each key has asked, in this process; for the event loop's thread alone."""

    def __init__(self) -> None:
        self._spent: dict[str, _Spent] = {}

    def count(self, key: Key) -> None:
        """One more request of this key; a TooManyError where its rate or its quota for today is used up."""
        if key.rate is None and key.quota is None:
            return
        now, (day, seconds) = time.monotonic(), divmod(time.time(), DAY)
        burst = max(1.0, BURST * (key.rate or 0))
        spent = self._spent.setdefault(key.name, _Spent(burst, now))
        if spent.day != day:
            spent.day, spent.today = int(day), 0
        if key.quota is not None and spent.today >= key.quota:
            raise TooManyError(f"this key may make {key.quota:,} requests a day, and has", DAY - seconds)
        if key.rate is not None:
            spent.room = min(burst, spent.room + key.rate * (now - spent.seen))
            spent.seen = now
            if spent.room < 1:
                wait = (1 - spent.room) / key.rate
                raise TooManyError(
                    f"this key may make {key.rate:g} requests a second; try again in {math.ceil(wait)} s",
                    wait,
                )
            spent.room -= 1
        spent.today += 1
