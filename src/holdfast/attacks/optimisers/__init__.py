"""How an attacker gets there. A new optimiser is a file here and a line in `OPTIMISERS`."""

from __future__ import annotations

import dataclasses
from typing import Any

from holdfast.attacks.optimisers.base import Found, Optimiser, Problem
from holdfast.attacks.optimisers.nes import Nes
from holdfast.attacks.optimisers.pgd import Pgd, PlainPgd
from holdfast.attacks.optimisers.spsa import Spsa
from holdfast.attacks.optimisers.universal import Shared, Universal
from holdfast.errors import ConfigError, unknown_name

OPTIMISERS: dict[str, type[Pgd] | type[Nes] | type[Spsa] | type[Universal]] = {
    "pgd": Pgd,
    "pgd-plain": PlainPgd,
    "nes": Nes,
    "spsa": Spsa,
    "universal": Universal,
}


def optimiser(name: str, **options: Any) -> Optimiser:
    """The optimiser of that name; an option it does not have is an error that lists those it has."""
    if name not in OPTIMISERS:
        raise ConfigError(unknown_name("optimiser", name, OPTIMISERS))
    kind = OPTIMISERS[name]
    known = [field.name for field in dataclasses.fields(kind)]
    for option in options:
        if option not in known:
            raise ConfigError(unknown_name(f"option of {name}", option, known))
    return kind(**options)


__all__ = [
    "OPTIMISERS",
    "Found",
    "Nes",
    "Optimiser",
    "Pgd",
    "PlainPgd",
    "Problem",
    "Shared",
    "Spsa",
    "Universal",
    "optimiser",
]
