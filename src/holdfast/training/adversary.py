"""The adversary of triplet training: whose images move, what they move for, and in which steps.

Anchors, positives and negatives are three equal rows of images. What does not move is embedded once;
each step embeds and differentiates the moving images alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

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
class Search:
    """How the adversary looks: signed steps within eps (ℓ∞) and [0, 1]."""

    eps: float
    steps: int
    step: float
    jitter: float = 0.0
    """It begins at a random point within this share of eps."""
    early_stop: bool = True
    """It ends where its loss is zero: the adversary has what it wants."""


@dataclass(frozen=True)
class Found:
    """Perturbed images, and what the search cost."""

    images: Triple
    gradients: int = 0
    """Images that were differentiated, over all steps."""
    moved: Moves = "apn"
    first: Tensor | None = None
    """The embeddings of those who moved where they began, if that was at the clean images."""


def perturb(
    embedder: nn.Module,
    images: Triple,
    clean: Triple | None,
    moves: Moves,
    goal: Goal,
    search: Search,
    start: Tensor | None = None,
) -> Found:
    """Signed gradient descent on `goal`, with the network in eval mode, from the clean images or from `start`.

    `clean` are the embeddings of `images` in eval mode, for goals that look at those who stay. Algorithm 1 of the
    CA-TRIDE paper prints an ascent on a loss that is to be minimised, without sign and projection; this is the
    descent that its text means.
    """
    origin = images.of(moves).contiguous(memory_format=torch.channels_last)
    low, high = (origin - search.eps).clamp_(min=0), (origin + search.eps).clamp_(max=1)
    moved = origin if start is None else start
    if search.jitter:
        moved = moved + search.jitter * search.eps * (2 * torch.rand_like(moved) - 1)
    moved = torch.clamp(moved, low, high)
    begins_clean = start is None and not search.jitter
    first, count = None, 0
    with evaluating(embedder):
        for _ in range(search.steps):
            moved.requires_grad_()
            embeddings = embedder(moved)
            if first is None and begins_clean:
                first = embeddings.detach()
            loss = goal(_placed(clean, moves, embeddings))
            if search.early_stop and loss.item() == 0:
                break
            (gradient,) = torch.autograd.grad(loss, moved)
            moved = torch.clamp(moved.detach() - search.step * gradient.sign_(), low, high)
            count += len(moved)
    return Found(images.moved(moves, moved.detach()), count, moves, first)


def _placed(clean: Triple | None, moves: Moves, embeddings: Tensor) -> Triple:
    """A triple with the embeddings of those who move in their place; the others as they were, or nothing."""
    if clean is None:
        nothing = embeddings[:0]
        clean = Triple(nothing, nothing, nothing)
    return clean.moved(moves, embeddings)


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


def goal_of(objective: Objective, clean: Triple | None, attention: float) -> Goal:
    """The loss of an objective, for triplets whose embeddings were `clean`.

    `shift` moves images away from where they were (EST), `together` brings positive and negative to one
    place (ACT), `hardness` raises H without end, and `collapseness` raises C as far as 0 (CAP, Eq. 10).
    """

    def shift(z: Triple) -> Tensor:
        assert clean is not None, "a shift is measured from the clean embeddings"
        return -apart(z.of("apn"), clean.of("apn")).mean()

    goals: dict[Objective, Goal] = {
        "shift": shift,
        # The squared distance has the gradient's direction, and no singularity where they meet.
        "together": lambda z: (z.p - z.n).square().sum(),
        "hardness": lambda z: -hardness(z).mean(),
        "collapseness": lambda z: torch.relu(-collapseness(z, attention)),
    }
    return goals[objective]


def nearer_half(distance: Tensor) -> Tensor:
    """The mean of the smaller half of the distances: those of the top ranks."""
    return distance.topk(max(1, len(distance) // 2), largest=False).values.mean()
