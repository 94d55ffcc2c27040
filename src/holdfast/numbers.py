"""Numbers as people type them: plain ASCII decimals, nothing that Python alone reads as a number."""

from __future__ import annotations

import re

_NUMBER = re.compile(
    r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[+-]?(?:inf|infinity|nan)", re.IGNORECASE
)
_WHOLE = re.compile(r"[+-]?[0-9]+")


def parse_number(text: str) -> float:
    """The float that `text` writes: 8, 0.1, 1e-3. ValueError for 1_0, other alphabets' digits, spaces."""
    if _NUMBER.fullmatch(text) is None:
        raise ValueError(f"not a number: '{text}'")
    return float(text)


def parse_whole(text: str) -> int:
    """The integer that `text` writes; ValueError as for `parse_number`."""
    if _WHOLE.fullmatch(text) is None:
        raise ValueError(f"not a whole number: '{text}'")
    return int(text)
