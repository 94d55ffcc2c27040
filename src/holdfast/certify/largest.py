"""The largest eps at which a hit is still certified, by bisection, many hits at once."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from holdfast import deadline

STEPS = 12
"""Bisections, each with one question for every claim."""


def largest_eps(
    certified: Callable[[Tensor], Tensor], count: int, *, most: float = 1.0, steps: int = STEPS
) -> Tensor:
    """For each of `count` claims an eps at which `certified` says yes, and near the largest such; -1 if none.

    `certified` takes one eps for each claim and answers for each. Interval bounds grow with eps, so a
    claim that holds at eps holds below it; the answer is always an eps at which it was proved, within
    most / 2^steps of the largest.
    """
    low = torch.where(certified(torch.zeros(count)), 0.0, -1.0)
    high = torch.full((count,), most)
    whole = certified(high) & (low >= 0)
    low = torch.where(whole, high, low)
    for _ in range(steps):
        deadline.check()
        middle = (low.clamp(min=0) + high) / 2
        sure = certified(middle) & (low >= 0) & ~whole
        low = torch.where(sure, middle, low)
        high = torch.where(sure | whole, high, middle)
    return low
