"""The adversary of triplet training: whose images move, what they move for, and in which steps.

Anchors, positives and negatives are three equal rows of images. What does not move is embedded once;
each step embeds and differentiates the moving images alone, and the search ends early where its loss
is zero: the adversary has what it wants.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from holdfast.attacks.ball import Ball
from holdfast.models.modes import evaluating

Moves = Literal["a", "pn", "apn"]
"""Who is perturbed: anchors, candidates (positives and negatives), or all of them."""


@dataclass(frozen=True)
class Triple:
    """Images, or embeddings, of anchors, positives and negatives; row i of each makes triplet i."""

    a: Tensor
    p: Tensor
    n: Tensor

    def of(self, moves: Moves) -> Tensor:
        """The rows of those who move, one role after the other."""
        return torch.cat([getattr(self, role) for role in moves])

    def moved(self, moves: Moves, rows: Tensor) -> Triple:
        """The same with the rows of those who moved put in their place."""
        return replace(self, **dict(zip(moves, rows.chunk(len(moves)), strict=True)))


Goal = Callable[[Triple], Tensor]
"""What the adversary lowers: a number, of the embeddings of perturbed triplets. At zero it stops."""


@dataclass(frozen=True)
class Found:
    """Perturbed images, and what the search cost."""

    images: Triple
    gradients: int = 0
    """Images that were differentiated, over all steps."""
    moved: Moves = "apn"


def perturb(
    embedder: nn.Module,
    images: Triple,
    clean: Triple,
    moves: Moves,
    goal: Goal,
    *,
    eps: float,
    steps: int,
    step: float,
    jitter: float = 0.0,
    early_stop: bool = True,
) -> Found:
    """Signed gradient descent on `goal` within eps (ℓ∞) and [0, 1], with the network in eval mode.

    `clean` are the embeddings of `images` in eval mode; with `jitter` the search begins at a random point
    within that share of eps, for goals that are flat at the clean images. Algorithm 1 of the seed prints an ascent on a
    loss that is to be minimised, without sign and projection; this is the descent that its text means.
    """
    ball = Ball(images.of(moves), "linf", eps)
    moved, count = ball.clean, 0
    if jitter:
        moved = ball.project(moved + jitter * eps * (2 * torch.rand_like(moved) - 1))
    with evaluating(embedder):
        for _ in range(steps):
            moved = moved.detach().requires_grad_()
            loss = goal(clean.moved(moves, embedder(moved)))
            if early_stop and loss.item() == 0:
                break
            (gradient,) = torch.autograd.grad(loss, moved)
            moved = ball.project(moved.detach() - step * ball.steepest(gradient))
            count += len(moved)
    return Found(images.moved(moves, moved.detach()), count, moves)


def apart(one: Tensor, other: Tensor) -> Tensor:
    """Row by row the distance, with gradient zero where two embeddings meet."""
    return (one - other).square().sum(1).clamp(min=1e-24).sqrt()


def hardness(triple: Triple) -> Tensor:
    """H = d(a, p) − d(a, n) of each triplet."""
    return apart(triple.a, triple.p) - apart(triple.a, triple.n)


def collapseness(triple: Triple, attention: float) -> Tensor:
    """C = d_ω(A, P) − d_ω(A, N) over the batch (Eq. 5–7); at attention 0 the mean hardness.

    No gradient flows through the weights: through them, an image farther than the weighted mean by more
    than 1/λ would be pulled the wrong way.
    """
    return near_mean(apart(triple.a, triple.p), attention) - near_mean(apart(triple.a, triple.n), attention)


def near_mean(distance: Tensor, attention: float) -> Tensor:
    """The mean with weights exp(−λ(d − min d)): near ones count most."""
    weight = torch.exp(-attention * (distance - distance.min())).detach()
    return (weight * distance).sum() / weight.sum()


Objective = Literal["shift", "together", "hardness", "collapseness"]
"""What an adversary can be after; `goal_of` has a line for each."""


SHIFT_JITTER = 0.1
"""Share of eps within which a search for `shift` begins: at the clean images the shift is least, and flat."""


def goal_of(objective: Objective, clean: Triple, attention: float) -> Goal:
    """The loss of an objective, for triplets whose embeddings were `clean`.

    `shift` moves images away from where they were (EST), `together` brings positive and negative to one
    place (ACT), `hardness` raises H without end, and `collapseness` raises C as far as 0 (CAP, Eq. 10).
    """
    goals: dict[Objective, Goal] = {
        "shift": lambda z: -apart(z.of("apn"), clean.of("apn")).mean(),
        # The squared distance has the gradient's direction, and no singularity where they meet.
        "together": lambda z: (z.p - z.n).square().sum(),
        "hardness": lambda z: -hardness(z).mean(),
        "collapseness": lambda z: torch.relu(-collapseness(z, attention)),
    }
    return goals[objective]


def nearer_half(distance: Tensor) -> Tensor:
    """The mean of the smaller half of the distances: those of the top ranks."""
    return distance.topk(max(1, len(distance) // 2), largest=False).values.mean()
