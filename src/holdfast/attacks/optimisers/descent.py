"""Projected steepest descent on each image by itself, with the gradient from wherever it comes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from holdfast import deadline
from holdfast.attacks.ball import Ball
from holdfast.attacks.objectives.base import Assessment
from holdfast.errors import ConfigError

Schedule = Literal["auto", "fixed"]
Keep = Literal["best", "last"]

_PROGRESS = 0.75
"""A step size stays if at least this share of the steps since the last checkpoint lowered the loss."""


class Oracle(Protocol):
    """What descent asks about images."""

    least: float

    def gradient(self, images: Tensor) -> tuple[Assessment, Tensor]: ...

    def value(self, images: Tensor) -> Assessment: ...


@dataclass(frozen=True)
class Rule:
    """How descent moves.

    `fixed` makes every step of the same `step`. `auto` starts with it and, at checkpoints that come
    faster and faster, halves it for the images whose progress stalls and takes those back to their
    best point (as Auto-PGD, Croce & Hein 2020). `keep` says which iterate is given back.
    """

    steps: int
    step: float
    schedule: Schedule = "auto"
    momentum: float = 0.25
    keep: Keep = "best"

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ConfigError(f"an attack takes at least 1 step, not {self.steps}")
        if not self.step >= 0:
            raise ConfigError(f"a step is 0 or longer, not {self.step}")
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"momentum lies between 0 and 1 (excluded), not {self.momentum}")
        if self.schedule not in ("auto", "fixed") or self.keep not in ("best", "last"):
            raise ConfigError(
                f"schedule is auto or fixed, keep is best or last; not {self.schedule}, {self.keep}"
            )


@dataclass(frozen=True, eq=False)
class Descent:
    """Where descent ended; the first axis is the image."""

    images: Tensor
    state: Assessment
    zero_gradient: Tensor
    trajectory: Tensor


def descend(oracle: Oracle, ball: Ball, start: Tensor, rule: Rule) -> Descent:
    """`rule.steps` steps from `start`: as many gradients, one more point that is only looked at."""
    x = before = start
    here, gradient = oracle.gradient(x)
    zero = (gradient == 0).flatten(1).all(1) & (here.loss > oracle.least)
    best, best_x, best_gradient = here, x, gradient
    lowest = [here.loss]
    size = torch.full_like(here.loss, rule.step)
    checkpoints = _checkpoints(rule.steps) if rule.schedule == "auto" else {}
    # The automatic schedule goes back to the best point, whichever is kept in the end.
    tracked = rule.keep == "best" or bool(checkpoints)
    fell = torch.zeros_like(here.loss)
    halved = torch.zeros_like(fell, dtype=torch.bool)
    best_then = best

    for k in range(1, rule.steps + 1):
        deadline.check()
        moved = ball.project(x - _each(size, x) * ball.steepest(gradient))
        if rule.momentum and k > 1:
            moved = ball.project(x + (1 - rule.momentum) * (moved - x) + rule.momentum * (x - before))
        before, x = x, moved
        if k < rule.steps:
            there, gradient = oracle.gradient(x)
        else:
            there = oracle.value(x)
        fell += there.loss < here.loss
        here = there
        lowest.append(torch.minimum(lowest[-1], here.loss))
        if tracked:
            better = here.better(best)
            best = here.where(better, best)
            best_x = torch.where(_each(better, x), x, best_x)
            if k < rule.steps:
                best_gradient = torch.where(_each(better, x), gradient, best_gradient)
        if k in checkpoints:
            stalled = fell < _PROGRESS * checkpoints[k]
            same = ~best.better(best_then) & ~halved
            halved = stalled | same
            size = torch.where(halved, size / 2, size)
            back = _each(halved, x)
            x, before = torch.where(back, best_x, x), torch.where(back, best_x, before)
            gradient = torch.where(back, best_gradient, gradient)
            here = best.where(halved, here)
            fell, best_then = torch.zeros_like(fell), best
    if rule.keep == "last":
        best, best_x = here, x
    return Descent(best_x, best, zero, torch.stack(lowest, 1))


def _each(values: Tensor, images: Tensor) -> Tensor:
    """One value for each image, shaped to go with the images."""
    return values.view(-1, *[1] * (images.ndim - 1))


def _checkpoints(steps: int) -> dict[int, int]:
    """Checkpoints, and the steps since the one before: at shares 0.22, 0.41, … each gap 0.03 shorter, ≥ 0.06."""
    shares = [0.0, 0.22]
    while shares[-1] < 1:
        shares.append(shares[-1] + max(shares[-1] - shares[-2] - 0.03, 0.06))
    places = sorted({place for share in shares[1:] if 0 < (place := -int(-share * steps // 1)) < steps})
    return {place: place - last for last, place in zip([0, *places], places, strict=False)}
