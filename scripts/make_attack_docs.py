"""Write the tables of docs/attacks.md from the registered goals and attacks."""

from __future__ import annotations

import re
from pathlib import Path

from holdfast.attacks import markdown, objective_rows, optimiser_rows
from holdfast.goals import goal_rows

PAGE = Path(__file__).resolve().parent.parent / "docs" / "attacks.md"


def page() -> str:
    """The page as it stands, with its tables made anew."""
    text = PAGE.read_text()
    tables = {"goals": goal_rows(), "objectives": objective_rows(), "optimisers": optimiser_rows()}
    for name, rows in tables.items():
        text = re.sub(
            rf"(<!-- {name} -->\n).*?(<!-- end -->)",
            lambda found, rows=rows: found[1] + markdown(rows) + found[2],  # type: ignore[misc]
            text,
            count=1,
            flags=re.S,
        )
    return text


if __name__ == "__main__":
    PAGE.write_text(page())
