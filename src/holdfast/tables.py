"""Tables of text, as the command line and results print them."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

WIDE = 10_000
"""Columns of a place that has no width: no cell wraps there."""


def made(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A table for rich to print; numbers stand to the right."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, name in enumerate(columns):
        right = bool(rows) and all(_is_number(row[index]) for row in rows)
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def text(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table as plain text, a line for each row."""
    from rich.console import Console

    page = io.StringIO()
    Console(file=page, width=WIDE).print(made(columns, rows))
    return "\n".join(line.rstrip() for line in page.getvalue().splitlines())


def _is_number(text: str) -> bool:
    return text.replace(",", "").replace(".", "").replace("–", "").strip().isdigit() or text in ("", "–")
