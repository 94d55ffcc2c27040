"""`--set key=value` into nested tables."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from typing import Any

from holdfast.errors import ConfigError
from holdfast.training import merge


def assignments(pairs: Sequence[str]) -> dict[str, Any]:
    """The tables that `key=value` pairs describe; a value is TOML, or else a plain string."""
    table: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--set takes key=value, not '{pair}'")
        value: Any = _value(text)
        for part in reversed(key.strip().split(".")):
            value = {part: value}
        table = merge(table, value)
    return table


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
