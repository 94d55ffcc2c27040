"""What the pages of reproductions share: a heading for a table, numbers as text."""

from __future__ import annotations

PAGE = "results.md"


def heading(table: str) -> str:
    """The heading of a table or figure of the paper."""
    return f"## Table {table}" if table.isdigit() else f"## {table.capitalize()}"


def digits(value: float | None) -> str:
    """A share, to two digits."""
    return "–" if value is None else f"{value:.2f}".removeprefix("0")
