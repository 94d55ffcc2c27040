"""What can happen: images altered within a threat so that a search goes wrong.

given = Given(candidates=Candidates(vectors, labels), labels=query_labels)
attack = Attack(objective("gtm", given), optimiser("pgd", steps=32), Threat.parse("linf:8/255"))
altered = attack.run(embedder, images)
"""

from __future__ import annotations

from holdfast.attacks.access import Access, BlackBox, TopK, WhiteBox, as_access
from holdfast.attacks.attack import Altered, Attack
from holdfast.attacks.ball import Ball
from holdfast.attacks.candidates import Candidates
from holdfast.attacks.capabilities import markdown, objective_rows, optimiser_rows
from holdfast.attacks.draw import near_targets, other_class, random_targets
from holdfast.attacks.eight_bit import to_bytes
from holdfast.attacks.objectives import OBJECTIVES, Assessment, Given, Objective, Wish, er_sources, objective
from holdfast.attacks.optimisers import OPTIMISERS, Nes, Optimiser, Pgd, PlainPgd, Spsa, Universal, optimiser
from holdfast.attacks.resized import Resized, through_file
from holdfast.attacks.settings import PAPER, PRINTED_STEPS, PUBLISHED, Settings

__all__ = [
    "OBJECTIVES",
    "OPTIMISERS",
    "PAPER",
    "PRINTED_STEPS",
    "PUBLISHED",
    "Access",
    "Altered",
    "Assessment",
    "Attack",
    "Ball",
    "BlackBox",
    "Candidates",
    "Given",
    "Nes",
    "Objective",
    "Optimiser",
    "Pgd",
    "PlainPgd",
    "Resized",
    "Settings",
    "Spsa",
    "TopK",
    "Universal",
    "WhiteBox",
    "Wish",
    "as_access",
    "er_sources",
    "markdown",
    "near_targets",
    "objective",
    "objective_rows",
    "optimiser",
    "optimiser_rows",
    "other_class",
    "random_targets",
    "through_file",
    "to_bytes",
]
