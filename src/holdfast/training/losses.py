"""Losses on distances, and the choice of triplets; pure functions of embeddings and labels."""

from __future__ import annotations

import torch
from torch import Tensor

Triplets = tuple[Tensor, Tensor, Tensor]
"""Anchor, positive and negative indices into a batch."""


def distances(embeddings: Tensor) -> Tensor:
    """All pairwise Euclidean distances; the gradient at equal embeddings is taken as zero.

    The expanded form in float64: a matrix product instead of N² differences, and still accurate to
    1e-8 of the embeddings' norm where two of them meet.
    """
    wide = embeddings.double()
    gram = wide @ wide.T
    norms = gram.diagonal()
    squared = norms[:, None] + norms[None] - 2 * gram
    return squared.clamp(min=1e-24).sqrt().to(embeddings.dtype)


def triplet_loss(distance: Tensor, triplets: Triplets, margin: float) -> Tensor:
    """Mean of relu(d(a,p) − d(a,n) + margin) (Kakizaki et al., Eq. 30); 0 where there is no triplet."""
    anchor, positive, negative = triplets
    if len(anchor) == 0:
        return distance.sum() * 0.0
    return torch.relu(distance[anchor, positive] - distance[anchor, negative] + margin).mean()


def random_triplets(labels: Tensor) -> Triplets:
    """Every ordered same-class pair with one other-class image drawn at random."""
    anchor, positive, order, others = _pairs(labels)
    draw = torch.rand(len(anchor))
    place = (draw * others[anchor]).long()
    return anchor, positive, order[anchor, place]


def semi_hard_triplets(distance: Tensor, labels: Tensor, width: float) -> Triplets:
    """Every ordered same-class pair with a random n of d(a,p) < d(a,n) < d(a,p) + width.

    A pair for which the batch holds no such n gets any other-class image at random, so that no
    anchor is left out.
    """
    distance = distance.detach()
    anchor, positive, order, others = _pairs(labels)
    same = labels[:, None] == labels[None]
    far, by_distance = torch.where(same, torch.inf, distance).sort(dim=1)
    low = torch.searchsorted(far, distance, right=True)[anchor, positive]
    high = torch.searchsorted(far, distance + width)[anchor, positive]
    draw = torch.rand(len(anchor))
    inside = by_distance[anchor, (low + (draw * (high - low)).long()).clamp(max=len(labels) - 1)]
    anywhere = order[anchor, (draw * others[anchor]).long()]
    return anchor, positive, torch.where(high > low, inside, anywhere)


def paired_triplets(labels: Tensor, distance: Tensor | None = None, width: float = 0.0) -> Triplets:
    """One triplet for each pair of a batch (a, p), (a, p), …: with a random negative, or a semi-hard one.

    A pair that finds no negative is left out.
    """
    if distance is None:
        anchor, positive, negative = random_triplets(labels)
    else:
        anchor, positive, negative = semi_hard_triplets(distance, labels, width)
    kept = (anchor % 2 == 0) & (positive == anchor + 1)
    return anchor[kept], positive[kept], negative[kept]


def entanglement(embeddings: Tensor, labels: Tensor) -> tuple[float, float]:
    """The mean distances within and between the classes of a batch."""
    distance = distances(embeddings.detach())
    same = labels[:, None] == labels[None]
    apart = ~torch.eye(len(labels), dtype=torch.bool)
    return distance[same & apart].mean().item(), distance[~same].mean().item()


def _pairs(labels: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Ordered same-class pairs whose anchor has a negative; per image: negatives first, their number."""
    same = labels[:, None] == labels[None]
    others = (~same).sum(1)
    order = same.to(torch.uint8).sort(dim=1, stable=True).indices
    pair = same & (others > 0)[:, None]
    pair.fill_diagonal_(False)
    anchor, positive = pair.nonzero(as_tuple=True)
    return anchor, positive, order, others


def telemetry(embeddings: Tensor, labels: Tensor) -> dict[str, float]:
    """How spread and how separated a batch is: the numbers in which a collapse shows first."""
    with torch.no_grad():
        distance = distances(embeddings.detach())
        same = labels[:, None] == labels[None]
        apart = ~torch.eye(len(labels), dtype=torch.bool)
        seen = {"mean_distance": distance[apart].mean().item()}
        if not same.all() and (same & apart).any():
            gap = distance[~same].mean() - distance[same & apart].mean()
            seen["separability"] = gap.item() / max(seen["mean_distance"], 1e-12)
        return seen
