"""How a setting changes over a run: pure functions of the share of the run that is done."""

from __future__ import annotations

import math
from typing import Literal

Shape = Literal["constant", "steps", "cosine"]


def learning_rate(
    shape: Shape, done: float, *, milestones: tuple[float, ...] = (), decay: float = 0.1, final: float = 0.02
) -> float:
    """The factor on the learning rate when a share `done` ∈ [0, 1) of the run is over.

    `steps` multiplies by `decay` at each milestone (a share of the run); `cosine` falls to `final`.
    """
    if shape == "steps":
        return decay ** sum(done >= milestone for milestone in milestones)
    if shape == "cosine":
        return final + (1 - final) * 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))
    return 1.0


def ramp(done: float, start: float, end: float, first: float, last: float) -> float:
    """`first` until `start`, `last` from `end` on, linear between (all shares of the run)."""
    if done <= start:
        return first
    if done >= end:
        return last
    return first + (last - first) * (done - start) / (end - start)


def smooth_ramp(done: float, start: float, end: float, last: float) -> float:
    """0 until `start`, `last` from `end` on: first by the fourth power, then, at the same slope, linear.

    The two meet at two fifths of the ramp (Xu et al. 2020, and Shi et al. 2021 after them).
    """
    share = ramp(done, start, end, 0.0, 1.0)
    meet = 0.4
    steep = 1 / (meet**4 + 4 * meet**3 * (1 - meet))
    if share < meet:
        return last * steep * share**4
    return last * (1 - 4 * steep * meet**3 * (1 - share))
