"""Descent where the model shows vectors or lists but no gradients: they are estimated from noisy copies."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.attacks.objectives.base import Assessment
from holdfast.attacks.optimisers.base import Found, Optimiser, Problem
from holdfast.attacks.optimisers.descent import Rule, descend
from holdfast.errors import ConfigError

TOGETHER = 256
"""Noisy copies that are shown to the model at once, at most (one pair for each image at least)."""


@dataclass(frozen=True)
class Estimated(Optimiser):
    """Gradients from antithetic pairs: mean of (loss(x + σu) − loss(x − σu))·u / 2σ over directions u.

    `queries` is the budget for each image, the clean one included: nothing more is ever asked, but for one look at
    the 8-bit picture where one is made. A step
    costs `probes` (an even number) and one look at the point. Copies are cut off at [0, 1], so every
    query is an image; they need not be inside the threat. Directions are drawn for each image by itself.
    """

    needs_gradients = False
    reads_lists = True

    queries: int = 1000
    probes: int = 20
    sigma: float = 0.03
    step: float | None = None
    momentum: float = 0.25

    def __post_init__(self) -> None:
        if self.probes < 2 or self.probes % 2:
            raise ConfigError(f"probes come in pairs: an even number from 2 on, not {self.probes}")
        if not self.sigma > 0:
            raise ConfigError(f"sigma is more than 0, not {self.sigma}")
        if self.steps < 1:
            least = self.probes + 3
            raise ConfigError(
                f"{self.probes} probes a step need a budget of {least} queries, not {self.queries}"
            )

    @property
    def steps(self) -> int:
        """As many as the budget pays for: the clean image, `probes` + 1 for each step, and the last look."""
        return (self.queries - 2) // (self.probes + 1)

    @abstractmethod
    def direction(self, shape: torch.Size, source: torch.Generator) -> Tensor:
        """A random direction u with E[u uᵀ] = I."""

    def search(self, problem: Problem) -> Found:
        step = problem.ball.eps / 2 if self.step is None else self.step
        oracle = _EstimatedGradient(problem, self)
        found = descend(oracle, problem.ball, problem.first(), Rule(self.steps, step, momentum=self.momentum))
        used = self.steps * (self.probes + 1) + 1
        return Found(found.images, found.state, found.zero_gradient, found.trajectory, 0, used)


class _EstimatedGradient:
    def __init__(self, problem: Problem, how: Estimated) -> None:
        self._problem, self._how = problem, how
        self._sources = problem.generators(how.name)
        self.least = problem.wish.least

    def value(self, images: Tensor) -> Assessment:
        return self._problem.finite(self._problem.wish.assess(self._problem.access.see(images)))

    def gradient(self, images: Tensor) -> tuple[Assessment, Tensor]:
        here = self.value(images)
        pairs, count = self._how.probes // 2, len(images)
        total = torch.zeros_like(images)
        at_once = max(1, TOGETHER // (2 * count))
        for first in range(0, pairs, at_once):
            total += self._pairs(images, min(at_once, pairs - first))
        return here, total / (pairs * 2 * self._how.sigma)

    def _pairs(self, images: Tensor, pairs: int) -> Tensor:
        """The sum over some pairs of (loss(x + σu) − loss(x − σu))·u, for each image."""
        shape, ball = images.shape[1:], self._problem.ball
        # One call for each direction: what is drawn does not depend on how many are shown together.
        drawn = [self._how.direction(shape, source) for source in self._sources for _ in range(pairs)]
        u = torch.stack(drawn).to(images)
        rows = torch.arange(len(images), device=images.device).repeat_interleave(pairs)
        centre = images[rows]
        probes = torch.cat([centre + self._how.sigma * u, centre - self._how.sigma * u])
        wish = self._problem.wish.take(rows.repeat(2))
        loss = wish.loss(self._problem.access.see(probes.clamp_(ball.low, ball.high)))
        up, down = loss.chunk(2)
        weight = (up - down).view(-1, *[1] * len(shape)).to(u.dtype)
        return (weight * u).view(len(images), pairs, *shape).sum(1)
