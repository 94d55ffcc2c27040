"""Logs for machines: one JSON object on a line, on stderr."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, TextIO

logger = logging.getLogger("holdfast.service")

_LONGEST = 2000


class JsonLines(logging.Formatter):
    """time, level, event, and whatever was given as `extra={"data": {...}}`; a stranger's text stays one line."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {"time": time, "level": record.levelname.lower(), "event": record.getMessage()}
        line.update(getattr(record, "data", {}))
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps({name: _cut(value, name) for name, value in line.items()}, default=str)


def _cut(value: Any, name: str) -> Any:
    return value[:_LONGEST] if isinstance(value, str) and name != "trace" else value


def set_up(stream: TextIO | None = None, level: int = logging.INFO) -> None:
    """Everything that the service and its server say goes to `stream` (stderr) as JSON lines."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines())
    for name in ("holdfast.service", "uvicorn", "uvicorn.error"):
        log = logging.getLogger(name)
        log.handlers, log.propagate = ([handler], False) if name != "uvicorn.error" else ([], True)
        log.setLevel(level)


def log(event: str, level: int = logging.INFO, error: BaseException | None = None, **data: Any) -> None:
    """One line about `event`."""
    logger.log(level, event, exc_info=error, extra={"data": data})
