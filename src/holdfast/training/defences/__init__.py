"""Ways of training an embedder. A new one is a file here and a line in `DEFENCES`."""

from __future__ import annotations

from typing import Any

from holdfast.errors import ConfigError, unknown_name
from holdfast.training.defences.act import Act
from holdfast.training.defences.base import Batch, Defence, DefenceOptions, Moment, Terms
from holdfast.training.defences.c_ibp import CIbp
from holdfast.training.defences.ca_tride import CaTride
from holdfast.training.defences.certified_margin import CertifiedMargin
from holdfast.training.defences.certified_rank import CertifiedRank
from holdfast.training.defences.class_code import ClassCode
from holdfast.training.defences.composed import Composed
from holdfast.training.defences.est import Est
from holdfast.training.defences.fctb import Fctb
from holdfast.training.defences.hm import Hm
from holdfast.training.defences.margin import Margin
from holdfast.training.defences.mixed import Mixed
from holdfast.training.defences.tbt import Tbt
from holdfast.training.defences.triplet import Triplet

DEFENCES: dict[str, type[Defence]] = {
    "triplet": Triplet,
    "margin": Margin,
    "adversarial": Composed,
    "est": Est,
    "act": Act,
    "hm": Hm,
    "ca-tride": CaTride,
    "c-ibp": CIbp,
    "tbt": Tbt,
    "fctb": Fctb,
    "certified-margin": CertifiedMargin,
    "certified-rank": CertifiedRank,
    "class-code": ClassCode,
    "mixed": Mixed,
}


def defence_class(name: Any) -> type[Defence]:
    """The defence of that name."""
    if not isinstance(name, str) or name not in DEFENCES:
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
