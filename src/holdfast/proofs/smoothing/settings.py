"""How a search is smoothed: the noise, and how many samples say what about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

import numpy as np

from holdfast.errors import ConfigError
from holdfast.models.smoothed import Backend, with_rounding
from holdfast.numbers import parse_number, parse_whole
from holdfast.proofs.smoothing.confidence import share_below

Rule = Literal["mean", "votes"]
"""By what a smoothed search lists its hits: the mean of the noisy copies' vectors, or the copies' votes."""


@dataclass(frozen=True)
class Smoothing:
    """How rankings are smoothed: the noise, and how many samples say what about it.

    `n` samples of a query answer; `first` others choose what is asked and place the bets; a gallery vector is
    the mean of `gallery`, and from then on just a number. `alpha` is each query's probability that its
    radius is too large.
    """

    sigma: float
    n: int = 1000
    alpha: float = 0.01
    first: int = 100
    gallery: int = 64
    seed: int = 0
    bound: float | None = None
    """No vector is longer, rounding included; just above 1 for normalised ones, for others it must be known."""
    backend: Backend = "torch"
    """Through what samples go; onnx (onnxruntime) is often several times as fast."""
    rule: Rule = "mean"
    """What is deployed: hits by the mean vector, or by the votes of noisy copies."""

    def __post_init__(self) -> None:
        if not 0 < self.sigma < np.inf:
            raise ConfigError(f"the noise needs a standard deviation above 0, not {self.sigma}")
        if not 0 < self.alpha < 1:
            raise ConfigError(f"alpha is a probability between 0 and 1, not {self.alpha}")
        if self.bound is not None and not 0 < self.bound < np.inf:
            raise ConfigError(f"bound is a length above 0 that no vector exceeds, not {self.bound}")
        if self.backend not in get_args(Backend):
            raise ConfigError(f"backend is {' or '.join(get_args(Backend))}, not '{self.backend}'")
        if self.rule not in get_args(Rule):
            raise ConfigError(f"rule is {' or '.join(get_args(Rule))}, not '{self.rule}'")
        if min(self.n, self.first, self.gallery) < 1:
            raise ConfigError("smoothing needs at least 1 sample of each kind")


def parse_smoothing(text: str) -> Smoothing:
    """`sigma=0.1,n=1000,alpha=0.01` as a `Smoothing`; `sigma` must be there.

    A `bound` is taken as exact arithmetic would have it. What is checked, and what proofs count with, is larger
    (`models.smoothed.with_rounding`): vectors that a float32 network has normalised are longer than 1 by rounding.
    """
    kinds: dict[str, Callable[[str], Any]] = {field.name: parse_whole for field in fields(Smoothing)}
    kinds |= {
        "sigma": parse_number,
        "alpha": parse_number,
        "bound": parse_number,
        "backend": str,
        "rule": str,
    }
    values: dict[str, Any] = {}
    for part in text.split(","):
        name, equals, value = part.strip().partition("=")
        if not equals or name not in kinds:
            raise ConfigError(
                f"smoothing is given as sigma=0.1,n=1000,… with {', '.join(kinds)}; found '{part}'"
            )
        try:
            values[name] = kinds[name](value.strip())
        except ValueError:
            wanted = "a number" if kinds[name] is parse_number else "a whole number"
            raise ConfigError(f"smoothing: {name} is {wanted}, not '{value}'") from None
    values["bound"] = with_rounding(values.get("bound"))
    if "sigma" not in values:
        raise ConfigError("smoothing needs the noise's standard deviation, for example sigma=0.1,n=1000")
    return Smoothing(**values)


def check_samples(smoothing: Smoothing, statements: float, k: int = 1, need: float = 0.5) -> None:
    """Refuse, before any work, a number of samples that cannot certify anything at this alpha.

    Even if all samples agree, their share must be proved to be above `need` with alpha divided by `statements`. By the
    mean of vectors of very different lengths a few samples less might do; who takes so few is told all the same.
    """
    alpha = smoothing.alpha / statements
    most = float(share_below(np.array([smoothing.n]), smoothing.n, alpha)[0])
    if most <= need:
        least = int(np.log(alpha) / np.log(need)) + 1
        raise ConfigError(
            f"{smoothing.n:,} samples cannot certify anything at alpha {smoothing.alpha:g} for the top {k}; take at "
            f"least {least:,}" + (", and a thousand to certify much" if least < 300 else "")
        )
