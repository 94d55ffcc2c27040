"""Which attack needs what, read off the code; docs/attacks.md shows these tables."""

from __future__ import annotations

from holdfast.attacks.objectives import OBJECTIVES
from holdfast.attacks.optimisers import OPTIMISERS


def objective_rows() -> list[dict[str, str]]:
    """One row for each objective: what it wants, whom it alters, what it needs to know."""
    return [
        {
            "attack": f"`{name}`",
            "the attacker wants to": kind.wants,
            "alters": kind.alters,
            "gallery vectors": _yes("gallery" in kind.needs),
            "labels": _yes("labels" in kind.needs),
            "targets": _yes("targets" in kind.needs),
            "works on lists of hits": _yes(kind.lists),
        }
        for name, kind in OBJECTIVES.items()
    ]


def optimiser_rows() -> list[dict[str, str]]:
    """One row for each optimiser: how it works and what it must see of the model."""
    return [
        {
            "optimiser": f"`{name}`",
            "how": kind.how,
            "torch module": "yes",
            "callable (vectors)": _yes(not kind.needs_gradients),
            "lists of hits": _yes(kind.reads_lists),
            "one perturbation for all": _yes(kind.shared),
        }
        for name, kind in OPTIMISERS.items()
    ]


def markdown(rows: list[dict[str, str]]) -> str:
    """The rows as a Markdown table."""
    heads = list(rows[0])
    lines = [heads, ["---"] * len(heads), *(list(row.values()) for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _yes(answer: bool) -> str:
    return "yes" if answer else "–"
