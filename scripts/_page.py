"""What the scripts share that write a table into a page."""

from __future__ import annotations

import sys
from pathlib import Path

# The library of the reproductions, which lies beside their rows.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "reproduce"))

END = "<!-- end -->"


def with_table(path: Path, start: str, table: str) -> str:
    """The page as it stands, with what is between `start` and the next end mark made anew."""
    return in_text(path.read_text(), start, table)


def in_text(text: str, start: str, table: str) -> str:
    """The same of a page's text."""
    before, rest = text.split(start)
    return f"{before}{start}\n{table}\n{END}{rest.split(END, 1)[1]}"
