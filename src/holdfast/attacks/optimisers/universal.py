"""One perturbation for many images (Moosavi-Dezfooli et al. 2017; for retrieval Li et al. 2019)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.attacks.ball import Ball
from holdfast.attacks.objectives.base import Assessment
from holdfast.attacks.optimisers.base import NUDGE, Found, Optimiser, Problem
from holdfast.attacks.optimisers.descent import Rule, descend
from holdfast.attacks.optimisers.pgd import ExactGradient
from holdfast.errors import ConfigError
from holdfast.randomness import generator


@dataclass(frozen=True)
class Universal(Optimiser):
    """The same δ in the ball is added to every image, cut off at [0, 1]; the mean over images is minimised.

    A step goes once through all images, so memory does not grow with their number.
    """

    name = "universal"
    how = "one perturbation for all images, by gradient steps on their mean"
    shared = True

    steps: int = 32
    step: float | None = None
    momentum: float = 0.25

    def __post_init__(self) -> None:
        Rule(self.steps, self.step or 0.0, momentum=self.momentum)

    def prepare(self, problems: Callable[[], Iterator[Problem]]) -> Optimiser:
        first = next(problems(), None)
        if first is None:
            raise ConfigError("a universal perturbation needs at least one image")
        zero = torch.zeros_like(first.ball.clean[:1])
        ball = Ball(zero, first.ball.norm, first.ball.eps, -1.0, 1.0)
        start = zero
        if first.nudge:
            start = ball.random([generator(first.seed, "nudge", "universal")], NUDGE)
        step = ball.eps / 2 if self.step is None else self.step
        found = descend(
            _MeanGradient(problems, first.wish.least),
            ball,
            start,
            Rule(self.steps, step, momentum=self.momentum),
        )
        return Shared(found.images[0], found.trajectory[0], bool(found.zero_gradient), self.steps)

    def search(self, problem: Problem) -> Found:
        return self.prepare(lambda: iter([problem])).search(problem)


class _MeanGradient:
    """Means over all images of loss, score and gradient, at images + δ."""

    def __init__(self, problems: Callable[[], Iterator[Problem]], least: float) -> None:
        self._problems, self.least = problems, least

    def gradient(self, images: Tensor) -> tuple[Assessment, Tensor]:
        state, gradient = self._mean(images, True)
        assert gradient is not None
        return state, gradient

    def value(self, images: Tensor) -> Assessment:
        return self._mean(images, False)[0]

    def _mean(self, delta: Tensor, slope: bool) -> tuple[Assessment, Tensor | None]:
        loss, score, count = torch.zeros_like(delta.flatten()[:1]), torch.zeros_like(delta.flatten()[:1]), 0
        total = torch.zeros_like(delta)
        for problem in self._problems():
            oracle, clean = ExactGradient(problem), problem.ball.clean
            altered = clean + delta
            if slope:
                # Where a pixel is cut off, δ has no say.
                free = (altered >= 0) & (altered <= 1)
                state, gradient = oracle.gradient(altered.clamp_(0, 1))
                total += (gradient * free).sum(0, keepdim=True)
            else:
                state = oracle.value(altered.clamp_(0, 1))
            loss, score = loss + state.loss.sum(), score + state.score.sum()
            count += len(clean)
        return Assessment(loss / count, score / count), total / count if slope else None


@dataclass(frozen=True, eq=False)
class Shared(Optimiser):
    """A perturbation that was found already, added to every image."""

    name = "shared"
    how = "a perturbation that was found already"
    shared = True
    needs_gradients = False

    delta: Tensor
    losses: Tensor
    stuck: bool = False
    steps: int = 0

    def search(self, problem: Problem) -> Found:
        ball = problem.ball
        images = ball.project(ball.clean + self.delta)
        state = problem.finite(problem.wish.assess(problem.access.see(images)))
        n = len(images)
        stuck = torch.full((n,), self.stuck, device=images.device)
        return Found(images, state, stuck, self.losses.expand(n, -1), self.steps, 2)
