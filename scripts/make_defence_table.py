"""Write the tables of docs/defences.md from the cells and runs of reproduce/kakizaki and reproduce/ca-tride."""

from __future__ import annotations

import json
from pathlib import Path

from _page import in_text, with_table

from holdfast.reproduce.choice import gradients_of

ROOT = Path(__file__).resolve().parents[1]
HOME = ROOT / "reproduce" / "kakizaki"
PAGE = ROOT / "docs" / "defences.md"
START = "<!-- defences: scripts/make_defence_table.py -->"
METHODS = ("triplet", "margin", "est", "act", "hm", "ca-tride", "c-ibp", "tbt", "tbt-fctb")
METHODS += ("certified-margin", "certified-rank", "mixed")
ADVERSARIAL = ROOT / "reproduce" / "ca-tride"
FULL = "<!-- adversarial: scripts/make_defence_table.py -->"
SETTINGS = (("fashion-mnist", "c2f2"), ("cub", "efficientnet-lite0"), ("cars", "efficientnet-lite0"))
SUITE_COLUMNS = (("R@1", None), ("mAP", None), ("NMI", None))
SUITE_COLUMNS += (("ERS", "published"), ("ARS", "published"), ("ERS", "ours"), ("ARS", "ours"))
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
        if c.get("attack") != "published"
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


def adversarial_table() -> str:
    """A row for each adversarially trained network of the full plan's tables 1 and 2, those that resist most first."""
    cells = [
        c
        for c in json.loads((ADVERSARIAL / "cells.json").read_text())
        if c["preset"] == "full" and c["table"] in ("1", "2") and c["ours"] is not None
    ]
    if not cells:
        return "The runs at strength (`holdfast reproduce ca-tride --preset full`) have no rows yet."
    lines = [
        "| data set, network | defence | R@1 | mAP | NMI | ERS, published attack | ARS | ERS, our attack | ARS "
        "| seeds | image gradients | CPU minutes |",
        "|---" * 12 + "|",
    ]
    for dataset, model in SETTINGS:
        ours = {
            (c["method"], c["metric"], c.get("attack")): c
            for c in cells
            if (c["dataset"], c["model"]) == (dataset, model)
        }
        ers = {method: cell["ours"] for (method, *rest), cell in ours.items() if rest == ["ERS", "ours"]}
        for method in sorted(ers, key=lambda method: -ers[method]):
            found = [ours.get((method, *column)) for column in SUITE_COLUMNS]
            shown = ["–" if cell is None else f"{cell['ours']:.1f}" for cell in found]
            spent = adversarial_cost(f"{dataset}-{model}-{method}")
            seeds = ours[method, "ERS", "ours"]["seeds"]
            lines.append(f"| {dataset}, {model} | `{method}` | {' | '.join(shown)} | {seeds} | {spent} |")
    return "\n".join(lines)


def adversarial_cost(name: str) -> str:
    """Image gradients and CPU minutes of a run, the mean over seeds."""
    runs = [*(ADVERSARIAL / "rows" / "full").glob(f"{name}-s[0-9]/run.json")]
    records = [json.loads(run.read_text()) for run in runs]
    minutes = [record["metrics"]["cpu_seconds"] / 60 for record in records]
    gradients = [
        gradients_of(record["config"], run.parent / "log.jsonl")
        for run, record in zip(runs, records, strict=True)
    ]
    return f"{sum(gradients) / len(runs) / 1e6:.1f} M | {sum(minutes) / len(runs):.0f}"


def page() -> str:
    """The page as it stands, with its tables made anew."""
    return in_text(with_table(PAGE, START, table()), FULL, adversarial_table())


if __name__ == "__main__":
    PAGE.write_text(page())
