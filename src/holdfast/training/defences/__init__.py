"""Ways of training an embedder. A new one is a file here and a line in `DEFENCES`."""

from __future__ import annotations

from typing import Any

from holdfast.errors import ConfigError, unknown_name
from holdfast.training.defences.base import Batch, Defence, DefenceOptions, Moment, Terms
from holdfast.training.defences.margin import Margin
from holdfast.training.defences.triplet import Triplet

DEFENCES: dict[str, type[Defence]] = {
    "triplet": Triplet,
    "margin": Margin,
}


def defence_class(name: Any) -> type[Defence]:
    """The defence of that name."""
    if name not in DEFENCES:
        raise ConfigError(unknown_name("defence", str(name), DEFENCES))
    return DEFENCES[name]


def build_defence(options: DefenceOptions, classes: int) -> Defence:
    """The defence that `options` describe, for a training set of that many classes."""
    return defence_class(options.name)(options, classes)


__all__ = [
    "DEFENCES",
    "Batch",
    "Defence",
    "DefenceOptions",
    "Moment",
    "Terms",
    "build_defence",
    "defence_class",
]
