"""What an attacker can want. A new objective is a file here and a line in `OBJECTIVES`."""

from __future__ import annotations

import inspect
from typing import Any

from holdfast.attacks.objectives.base import Assessment, Given, Objective, Wish
from holdfast.attacks.objectives.candidate_rank import LowerCandidate, RaiseCandidate
from holdfast.attacks.objectives.er_recall import ErCandidates, ErQuery, er_sources
from holdfast.attacks.objectives.es import EmbeddingShift
from holdfast.attacks.objectives.gtm import GreedyMisrank, PublishedMisrank
from holdfast.attacks.objectives.gtt import Translocation
from holdfast.attacks.objectives.ltm import Misrank
from holdfast.attacks.objectives.query_rank import LowerByQuery, RaiseByQuery
from holdfast.attacks.objectives.tma import TargetedMismatch
from holdfast.errors import ConfigError, unknown_name

OBJECTIVES: dict[str, type[Objective]] = {
    kind.name: kind
    for kind in (
        RaiseCandidate,
        LowerCandidate,
        RaiseByQuery,
        LowerByQuery,
        TargetedMismatch,
        EmbeddingShift,
        Misrank,
        GreedyMisrank,
        PublishedMisrank,
        Translocation,
        ErQuery,
        ErCandidates,
    )
}


def objective(name: str, given: Given, **options: Any) -> Objective:
    """The objective of that name; an option it does not have is an error that lists those it has."""
    if name not in OBJECTIVES:
        raise ConfigError(unknown_name("attack", name, OBJECTIVES))
    kind = OBJECTIVES[name]
    known = {
        option
        for owner in kind.__mro__
        if "__init__" in vars(owner)
        for option, parameter in inspect.signature(vars(owner)["__init__"]).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    for option in options:
        if option not in known:
            raise ConfigError(unknown_name(f"option of {name}", option, known or {"none"}))
    return kind(given, **options)


__all__ = ["OBJECTIVES", "Assessment", "Given", "Objective", "Wish", "er_sources", "objective"]
