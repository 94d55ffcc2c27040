"""Compute the table of sizes in docs/production.md from what bench/sizing.py measured."""

from __future__ import annotations

import json
from pathlib import Path

from _page import with_table

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "production.md"
START = "<!-- sizing: scripts/make_sizing_table.py -->"
DIM = 128


def page() -> str:
    """The page with its table made anew."""
    figures = json.loads((ROOT / "docs" / "sizing.json").read_text())["figures"]
    lines = [
        f"| candidates × {DIM} | file | with boxes for one eps | memory or mapped cache | one search, one core "
        "| searches a second and core, sixteen together |",
        "|---|---|---|---|---|---|",
    ]
    for count in (10**5, 10**6, 10**7, 10**8):
        numbers = count * DIM
        file = numbers * 4 + count * figures["bytes a candidate besides its numbers"]
        boxes = file + numbers * figures["bytes of boxes for a number"]
        cache = numbers * figures["bytes of a cache for a number"]
        alone = numbers * figures["nanoseconds a number, one search"] / 1e9
        together = numbers * figures["nanoseconds a number, sixteen together"] / 1e9
        lines.append(
            f"| {count:,} | {_size(file)} | {_size(boxes)} | {_size(cache)} | {_time(alone)} | {1 / together:,.3g} |"
        )
    return with_table(PAGE, START, "\n".join(lines))


def _size(number: float) -> str:
    return f"{number / 1e9:,.1f} GB" if number >= 1e9 else f"{number / 1e6:,.0f} MB"


def _time(seconds: float) -> str:
    return f"{seconds:,.1f} s" if seconds >= 1 else f"{seconds * 1e3:,.0f} ms"


if __name__ == "__main__":
    PAGE.write_text(page())
