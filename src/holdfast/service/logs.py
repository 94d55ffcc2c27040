"""Logs for machines: one JSON object on a line, on stderr, and of no kind more than a disk can take."""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from datetime import UTC, datetime
from typing import Any, TextIO

logger = logging.getLogger("holdfast.service")

_LONGEST, _LONGEST_TRACE = 2000, 8000
LINES, LINES_A_SECOND = 1000, 200.0
"""Of each kind of line: so many at once, and so many a second for as long as it lasts."""
_KINDS = 256


class JsonLines(logging.Formatter):
    """time, level, event, and whatever was given as `extra={"data": {...}}`; a stranger's text stays one line."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {"time": time, "level": record.levelname.lower(), "event": record.getMessage()}
        line.update(getattr(record, "data", {}))
        if (left_out := getattr(record, "left_out", 0)) > 0:
            line["left_out"] = left_out
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps({name: _cut(value, name) for name, value in line.items()}, default=str)


def _cut(value: Any, name: str) -> Any:
    if not isinstance(value, str):
        return value
    return value[-_LONGEST_TRACE:] if name == "trace" else value[:_LONGEST]


class AtMost(logging.Filter):
    """Leaves lines out where there are too many of a kind; the next that is written says how many (`left_out`)."""

    def __init__(self, lines: int = LINES, a_second: float = LINES_A_SECOND) -> None:
        super().__init__()
        self._lines, self._a_second = lines, a_second
        self._kinds: dict[tuple[str, int, str], tuple[float, float, int]] = {}
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        kind, now = (record.name, record.levelno, str(record.msg)[:100]), time.monotonic()
        with self._lock:
            if kind not in self._kinds and len(self._kinds) >= _KINDS:
                self._kinds.clear()
            room, last, left_out = self._kinds.get(kind, (float(self._lines), now, 0))
            room = min(float(self._lines), room + (now - last) * self._a_second)
            if room < 1:
                self._kinds[kind] = (room, now, left_out + 1)
                return False
            self._kinds[kind] = (room - 1, now, 0)
        record.left_out = left_out
        return True


def set_up(stream: TextIO | None = None, level: int = logging.INFO) -> None:
    """Everything that this process says goes to `stream` (stderr) as JSON lines.

    Also warnings, what the server, asyncio and other libraries log, and errors that end a thread.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines())
    handler.addFilter(AtMost())
    everyone = logging.getLogger()
    everyone.handlers = [handler]
    for name in ("holdfast.service", "uvicorn", "uvicorn.error", "asyncio", "py.warnings"):
        one = logging.getLogger(name)
        one.handlers, one.propagate = [], True
        one.setLevel(level if name in ("holdfast.service", "uvicorn") else logging.NOTSET)
    logging.captureWarnings(True)
    threading.excepthook = lambda said: log("failed", logging.ERROR, said.exc_value, thread=str(said.thread))


def log(event: str, level: int = logging.INFO, error: BaseException | None = None, **data: Any) -> None:
    """One line about `event`."""
    logger.log(level, event, exc_info=error, extra={"data": data})
