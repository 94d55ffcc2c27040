"""Anti-collapse triplet (Zhou et al. 2021) in the form of seed 000, appendix B, Eq. 31 and 32."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from holdfast.attacks.ball import Ball
from holdfast.models.modes import evaluating
from holdfast.training.defences.base import Batch, Defence, DefenceOptions, Moment, Terms
from holdfast.training.losses import random_triplets


class ActOptions(DefenceOptions):
    """PGD of `attack_steps` steps of eps·`step`, from the clean images."""

    name: Literal["act"] = "act"
    eps: float = Field(default=0.2, gt=0, le=1)
    margin: float = Field(default=1.0, gt=0)
    attack_steps: int = Field(default=20, ge=1)
    step: float = Field(default=0.1, gt=0)


class Act(Defence):
    """Triplet loss on (a, p + δₚ, n + δₙ), the perturbations chosen to bring p and n together."""

    Options = ActOptions

    def __init__(self, options: ActOptions, classes: int) -> None:
        super().__init__()
        self.options = options

    def terms(self, embedder: nn.Module, batch: Batch, at: Moment) -> Terms:
        # One negative for each pair of the sampler: the batch is (a, p), (a, p), …
        anchor, positive = torch.arange(0, len(batch.labels), 2), torch.arange(1, len(batch.labels), 2)
        drawn = random_triplets(batch.labels)
        negative = _negatives(drawn, anchor, batch.labels)
        kept = negative >= 0
        anchor, positive, negative = anchor[kept], positive[kept], negative[kept]
        p, n = self.bring_together(embedder, batch.images[positive], batch.images[negative])
        embeddings = embedder(torch.cat([batch.images[anchor], p, n]))
        a, p, n = embeddings.chunk(3)
        gap = (a - p).norm(dim=1) - (a - n).norm(dim=1)
        loss = torch.relu(gap + self.options.margin).mean()
        with torch.no_grad():
            clean = embedder(batch.images)
        return Terms(loss, clean, {"eps": self.options.eps})

    def bring_together(self, embedder: nn.Module, p: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
        """Images within eps of p and n, in [0, 1], whose embeddings are near each other (Eq. 32)."""
        ball = Ball(torch.cat([p, n]), "linf", self.options.eps)
        step = self.options.step * self.options.eps
        moved = ball.clean
        with evaluating(embedder):
            for _ in range(self.options.attack_steps):
                moved = moved.detach().requires_grad_()
                one, other = embedder(moved).chunk(2)
                # The squared distance has the gradient's direction, and no singularity where they meet.
                (gradient,) = torch.autograd.grad((one - other).square().sum(), moved)
                moved = ball.project(moved.detach() - step * ball.steepest(gradient))
        p, n = moved.chunk(2)
        return p, n


def _negatives(drawn: tuple[Tensor, Tensor, Tensor], anchor: Tensor, labels: Tensor) -> Tensor:
    """The negative that was drawn for each anchor first; -1 where an anchor has none."""
    negative = torch.full((len(labels),), -1)
    negative[drawn[0].flip(0)] = drawn[2].flip(0)
    return negative[anchor]
