"""How an attacker gets there: the interface of optimisers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from holdfast.attacks.access import Access
from holdfast.attacks.ball import Ball
from holdfast.attacks.objectives.base import Assessment, Wish
from holdfast.errors import ModelError
from holdfast.randomness import generator

NUDGE = 0.01
"""How far beside the clean image a search starts where the gradient there is zero, in shares of eps."""


@dataclass(frozen=True, eq=False)
class Problem:
    """A batch of images, what is wanted of each, and what the attacker may do and see."""

    access: Access
    wish: Wish
    ball: Ball
    seen: Tensor
    """What the model shows of the clean images."""
    numbers: Sequence[int]
    """The images' numbers, by which random numbers are drawn."""
    seed: int
    nudge: bool = False
    start: Tensor | None = None
    """Where to start instead of the clean images (projected)."""

    def clean(self) -> Assessment:
        """How far the wishes are fulfilled by the clean images."""
        return self.wish.assess(self.seen)

    def generators(self, *place: str | int) -> list[torch.Generator]:
        """A generator for each image, for one place of use."""
        return [generator(self.seed, *place, number) for number in self.numbers]

    def first(self) -> Tensor:
        """The images from which the first search starts."""
        if self.start is not None:
            return self.ball.project(self.start.to(self.ball.clean))
        if self.nudge:
            return self.ball.random(self.generators("nudge"), NUDGE)
        return self.ball.clean

    def finite(self, state: Assessment) -> Assessment:
        """The assessment itself; NaN is an error that names the image."""
        good = torch.isfinite(state.loss)
        if not bool(good.all()):
            number = self.numbers[int((~good).to(torch.uint8).argmax())]
            raise ModelError(
                f"the embedder gives NaN or infinity near image {number}; "
                "train it again or load other weights"
            )
        return state


@dataclass(frozen=True, eq=False)
class Found:
    """What an optimiser found for a batch; every tensor's first axis is the image."""

    images: Tensor
    state: Assessment
    zero_gradient: Tensor
    """No usable gradient at the first point although the wish was not fulfilled."""
    trajectory: Tensor
    """The smallest loss up to each step (the best restart's), B×(steps + 1)."""
    gradients: int
    """Gradient evaluations for each image."""
    queries: int
    """Images shown to the model without gradient, for each image; the clean one is not among them."""


class Optimiser(ABC):
    """A way to fulfil wishes inside a ball of images."""

    name: ClassVar[str]
    how: ClassVar[str]
    """In plain words, for the table of attacks."""
    needs_gradients: ClassVar[bool] = True
    reads_lists: ClassVar[bool] = False
    shared: ClassVar[bool] = False
    """Whether one perturbation is sought for all images."""

    def prepare(self, problems: Callable[[], Iterator[Problem]]) -> Optimiser:
        """Called once with all batches, before any `search`; gives what searches each batch."""
        return self

    @abstractmethod
    def search(self, problem: Problem) -> Found:
        """The best images that were found; they are allowed."""
