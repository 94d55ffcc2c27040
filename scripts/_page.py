"""What the scripts share that write a table into a page."""

from __future__ import annotations

from pathlib import Path

END = "<!-- end -->"


def with_table(path: Path, start: str, table: str) -> str:
    """The page as it stands, with what is between `start` and the next end mark made anew."""
    before, rest = path.read_text().split(start)
    return f"{before}{start}\n{table}\n{END}{rest.split(END, 1)[1]}"
