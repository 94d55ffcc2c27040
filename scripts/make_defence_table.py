"""Write the table of docs/defences.md from the cells and runs of reproduce/kakizaki."""

from __future__ import annotations

import json
from pathlib import Path

from _page import with_table

ROOT = Path(__file__).resolve().parents[1]
HOME = ROOT / "reproduce" / "kakizaki"
PAGE = ROOT / "docs" / "defences.md"
START = "<!-- defences: scripts/make_defence_table.py -->"
METHODS = ("triplet", "margin", "est", "act", "hm", "ca-tride", "c-ibp", "tbt", "tbt-fctb")
METHODS += ("certified-margin", "certified-rank", "mixed")
EPS, K = "0.1", 10
COLUMNS = (
    ("recall", "none", "0", 1),
    ("recall", "none", "0", K),
    ("er_recall", "query", EPS, K),
    ("er_recall", "candidates", EPS, K),
    ("certified_hit_rate", "query", EPS, K),
    ("certified_hit_rate", "candidates", EPS, K),
)


def table() -> str:
    """A row for each defence, on Fashion-MNIST with the network `small`."""
    cells = json.loads((HOME / "cells.json").read_text())
    ours = {
        (c["method"], c["metric"], c["threat"], c["eps"], c["k"]): c["ours"]
        for c in cells
        if (c["dataset"], c["model"]) == ("fashion-mnist", "small") and c["ours"] is not None
    }
    lines = [
        "| defence | Recall@1 | @10 | attacked @10: query | candidates | certified @10: query | candidates "
        "| CPU minutes |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for method in METHODS:
        numbers = [ours.get((method, *column)) for column in COLUMNS]
        shown = ["–" if number is None else f"{number:.2f}" for number in numbers]
        lines.append(f"| `{method}` | " + " | ".join([*shown, cost(method)]) + " |")
    return "\n".join(lines)


def cost(method: str) -> str:
    """What training took, the mean over seeds; a fine-tuned run counts its first training too."""
    parts = ["tbt", method] if method == "tbt-fctb" else [method]
    total = 0.0
    for part in parts:
        runs = [*(HOME / "rows" / "laptop").glob(f"fashion-mnist-small-{part}-s[0-9]/run.json")]
        if not runs:
            return "–"
        spent = [json.loads(run.read_text())["metrics"]["cpu_seconds"] for run in runs]
        total += sum(spent) / len(spent)
    return f"{total / 60:.1f}"


def page() -> str:
    """The page as it stands, with its table made anew."""
    return with_table(PAGE, START, table())


if __name__ == "__main__":
    PAGE.write_text(page())
