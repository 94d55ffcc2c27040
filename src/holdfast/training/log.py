"""A run's log: one JSON object a line, in the order of the steps, also after a resume."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from holdfast.files import atomic_write, storage_error


class Log:
    """Appends records to a JSONL file; on resume, records from beyond the checkpoint are dropped."""

    def __init__(self, path: Path, step: int = 0) -> None:
        self._path = path
        kept = [record for record in read_log(path) if record["step"] <= step]
        atomic_write(path, "".join(json.dumps(record) + "\n" for record in kept))

    def write(self, **record: Any) -> None:
        try:
            with open(self._path, "a") as handle:
                handle.write(json.dumps(record) + "\n")
        except OSError as cause:
            raise storage_error(self._path, cause) from cause


def read_log(path: Path) -> list[dict[str, Any]]:
    """The records of a log; a last line that a crash cut short is left out."""
    if not path.exists():
        return []
    records = []
    for line in path.read_text(errors="replace").splitlines():
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return records
