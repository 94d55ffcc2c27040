"""Robustness scores from what the attacks of a suite reached: ERS and ARS.

Names are those of the tables of Zhou et al. 2021 and of the CA-TRIDE paper. Ranks are percentages,
`prank` = 100·#{x: d(q, x) < d(q, c)} / N; recalls and the GTT share are percentages too; TMA is a
cosine and ES:D a distance between unit vectors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Column = NDArray[Any]

RAISE = ("CA+", "QA+")
LOWER = ("CA-", "QA-")
RECALLS = ("ES:R", "LTM", "GTM")
ERS_PARTS = ("CA+", "CA-", "QA+", "QA-", "TMA", "ES:D", "ES:R", "LTM", "GTM", "GTT")
ARS_PARTS = ("CA+", "CA-", "QA+", "QA-", "ES:R", "LTM", "GTM", "GTT")
FIRST_RANK = {"CA+": 50.0, "QA+": 50.0, "CA-": 1.0, "QA-": 1.0}
"""Where a random target stands on average, and where the lowered one is drawn from: the top 1 %."""


@dataclass(frozen=True)
class Score:
    """A mean over attacks; `parts` has each attack's own share, from 0 (the attacker wins) to 100."""

    value: float
    parts: dict[str, float]


def ers(reached: Mapping[str, float]) -> Score:
    """Empirical robustness score (Zhou et al. 2021): the mean of ten results, each brought to 0 … 100.

    2·CA+, 100 − CA−, 2·QA+, 100 − QA−, 100(1 − TMA), 100(2 − ES:D)/2, ES:R, LTM, GTM, GTT. A rank that a
    backfiring attack worsens counts as it is, as in the published tables.
    """
    parts = {name: reached[name] for name in ERS_PARTS}
    for name in RAISE:
        parts[name] *= 2
    for name in LOWER:
        parts[name] = 100 - parts[name]
    parts["TMA"] = 100 * (1 - parts["TMA"])
    parts["ES:D"] = 100 * (2 - parts["ES:D"]) / 2
    return _mean(parts)


def ars_ratio(reached: Mapping[str, float], clean_recall: float) -> Score:
    """Adversarial resistance score (CA-TRIDE, Eq. 15) as a ratio of means, the form of the published ACT and HM rows.

    1 − (O_r − O_i)/(O_g − O_i): for + attacks from rank 50 % to 0, for − attacks from 1 % to 100 % (the goal is
    the last rank: the denominator of Eq. 29, r, would give impossible values), for recalls from the
    clean Recall@1 to 0, for GTT from 100 % to 0. Kept between 0 and 100: an attack that backfires is
    fully resisted. Where the clean Recall@1 is 0 there is nothing to lose, and those parts are 100.
    """
    parts = {}
    for name in ARS_PARTS:
        first = FIRST_RANK.get(name, 100.0 if name == "GTT" else clean_recall)
        goal = 100.0 if name in LOWER else 0.0
        parts[name] = _resisted(reached[name], first, goal)
    return _mean(parts)


def ars_trial(before: Mapping[str, Column], after: Mapping[str, Column], clean_recall: float) -> Score:
    """ARS with rank attacks averaged trial by trial (Eq. 30); the other four are ratios of means (Eq. 31).

    Unstable where first ranks are small: report it beside `ars_ratio`. A target that already stands
    at the goal (r = 0 for +, the last rank for −) cannot be moved towards it and counts as fully resisted.
    """
    resisted = {name: float(np.mean(resisted_trials(name, before[name], after[name]))) for name in FIRST_RANK}
    reached = {name: float(np.mean(after[name])) for name in ARS_PARTS if name not in FIRST_RANK}
    return ars_of(resisted, reached, clean_recall)


def ars_of(resisted: Mapping[str, float], reached: Mapping[str, float], clean_recall: float) -> Score:
    """ARS from the mean over trials of each rank attack's `resisted_trials`, and what the other four reached."""
    parts = {}
    for name in ARS_PARTS:
        first = 100.0 if name == "GTT" else clean_recall
        parts[name] = resisted[name] if name in FIRST_RANK else _resisted(reached[name], first, 0.0)
    return _mean(parts)


def resisted_trials(name: str, before: Column, after: Column) -> Column:
    """How much of its way each trial of a rank attack did not get, in percent (Eq. 30)."""
    goal = 100.0 if name in LOWER else 0.0
    return np.array([_resisted(r, i, goal) for i, r in zip(before, after, strict=True)])


def _resisted(reached: float, first: float, goal: float) -> float:
    """How much of the way from `first` to `goal` the attacker did not get, in percent."""
    if first == goal:
        return 100.0
    return 100 * min(1.0, max(0.0, 1 - (reached - first) / (goal - first)))


def _mean(parts: dict[str, float]) -> Score:
    return Score(float(np.mean(list(parts.values()))), parts)


def unit_shift(before: Tensor, after: Tensor) -> Tensor:
    """How far the direction of each vector moved: between 0 and 2."""
    one, other = (torch.nn.functional.normalize(v.double(), dim=1) for v in (before, after))
    moved: Tensor = (one - other).norm(dim=1)
    return moved
