"""Projected gradient descent with the model's own gradients."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from holdfast.attacks.objectives.base import Assessment
from holdfast.attacks.optimisers.base import Found, Optimiser, Problem
from holdfast.attacks.optimisers.descent import Descent, Keep, Rule, Schedule, descend
from holdfast.errors import ConfigError


class ExactGradient:
    """Gradients through the model. One that is not a number is taken for zero."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self.least = problem.wish.least

    def gradient(self, images: Tensor) -> tuple[Assessment, Tensor]:
        images = images.detach().requires_grad_()
        state = self._problem.wish.assess(self._problem.access.embed(images))
        self._problem.finite(state)
        (gradient,) = torch.autograd.grad(state.loss.sum(), images)
        return state.detach(), gradient.nan_to_num(0.0, 0.0, 0.0)

    def value(self, images: Tensor) -> Assessment:
        return self._problem.finite(self._problem.wish.assess(self._problem.access.see(images)))


@dataclass(frozen=True)
class Pgd(Optimiser):
    """Signed (ℓ∞) or normalised (ℓ2) gradient steps; gives the best point of all restarts, image by image.

    `step` is in pixel values; None means eps/2 for the automatic schedule, which finds its own size,
    and 2.5·eps/steps for the fixed one. (Auto-PGD starts with 2·eps; with few steps eps/2 was stronger.)
    The first search starts at the clean image, `restarts` − 1 more at random points of the ball. Each
    costs `steps` gradients and one look.
    """

    name = "pgd"
    how = "gradient steps with best iterate, momentum, automatic step size, restarts"

    steps: int = 32
    step: float | None = None
    restarts: int = 1
    schedule: Schedule = "auto"
    momentum: float = 0.25
    keep: Keep = "best"

    def __post_init__(self) -> None:
        self.rule(1.0)
        if self.restarts < 1:
            raise ConfigError(f"there is at least 1 (re)start, not {self.restarts}")

    def rule(self, eps: float) -> Rule:
        """The steps of one search in a ball of that radius."""
        usual = eps / 2 if self.schedule == "auto" else 2.5 * eps / max(self.steps, 1)
        step = usual if self.step is None else self.step
        return Rule(self.steps, step, self.schedule, self.momentum, self.keep)

    def search(self, problem: Problem) -> Found:
        oracle, rule = ExactGradient(problem), self.rule(problem.ball.eps)
        found = descend(oracle, problem.ball, problem.first(), rule)
        for restart in range(1, self.restarts):
            start = problem.ball.random(problem.generators("restart", restart))
            found = _merge(found, descend(oracle, problem.ball, start, rule))
        n = self.restarts
        return Found(found.images, found.state, found.zero_gradient, found.trajectory, n * self.steps, n)


def _merge(one: Descent, other: Descent) -> Descent:
    """The better of two searches, image by image; the first one's start is what the telemetry is about."""
    better = other.state.better(one.state)
    where = better.view(-1, *[1] * (one.images.ndim - 1))
    return replace(
        one,
        images=torch.where(where, other.images, one.images),
        state=other.state.where(better, one.state),
        trajectory=torch.minimum(one.trajectory, other.trajectory),
    )


@dataclass(frozen=True)
class PlainPgd(Pgd):
    """The last of equal signed steps from the clean image: the form of the public reference, for comparison."""

    name = "pgd-plain"
    how = "equal gradient steps, last iterate (the public reference's form)"

    step: float | None = 3 / 255
    schedule: Schedule = "fixed"
    momentum: float = 0.0
    keep: Keep = "last"
