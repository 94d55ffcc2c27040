"""Write the table of presets in docs/training.md from their registry."""

from __future__ import annotations

from pathlib import Path

from _page import with_table

from holdfast.presets import PRESETS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "training.md"
START = "<!-- presets: scripts/make_preset_table.py -->"


def table() -> str:
    """A row for each preset."""
    lines = ["| preset | what it is | defence | also for |", "|---|---|---|---|"]
    for name, preset in PRESETS.items():
        others = ", ".join(f"`{one}`" for one in preset.defences if one != preset.brings)
        brings = f"`{preset.brings}`" if preset.brings else "named by you"
        lines.append(f"| `{name}` | {preset.about} | {brings} | {others or '–'} |")
    return "\n".join(lines)


def page() -> str:
    """The page as it stands, with its table made anew."""
    return with_table(PAGE, START, table())


if __name__ == "__main__":
    PAGE.write_text(page())
