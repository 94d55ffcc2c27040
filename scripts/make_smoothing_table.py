"""Write the table of docs/smoothing.md: ours with 1,000 samples, the printed form with 100,000, from rows."""

from __future__ import annotations

from pathlib import Path

from _page import with_table

from reproduction import Home, read_plan
from reproduction.smoothed import SmoothedSearches

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "smoothing.md"
START = "<!-- table: scripts/make_smoothing_table.py -->"


def page() -> str:
    """The page as it stands, with its table made anew."""
    home = ROOT / "reproduce" / "retrievalguard"
    return with_table(
        PAGE, START, SmoothedSearches(Home(home, "laptop"), read_plan(home, "laptop")).few_samples()
    )


if __name__ == "__main__":
    PAGE.write_text(page())
