"""Tightly bounding training (Kakizaki, Fukuchi, Sakuma, Eq. 20)."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from holdfast.bounds import distance_bounds
from holdfast.training.defences.base import Batch, Moment, Terms
from holdfast.training.defences.bounded import Bounded, BoundedOptions
from holdfast.training.losses import distances, random_triplets, triplet_loss


class TbtOptions(BoundedOptions):
    """κ goes from 1 to `kappa` on the ramp on which ε goes from 0 to `eps`."""

    name: Literal["tbt"] = "tbt"
    margin: float = Field(default=1.0, gt=0)
    kappa: float = Field(default=0.5, ge=0, le=1)
    ibp_init: bool = False


class Tbt(Bounded):
    """κ·T(a,p,n) + (1 − κ)·Σ over x ∈ {p,n} of max(|d − d̄ₓ(a)|, |d − d̲ₓ(a)|)."""

    Options = TbtOptions
    options: TbtOptions

    def __init__(self, options: TbtOptions, classes: int) -> None:
        super().__init__()
        self.options = options

    def terms(self, embedder: nn.Module, batch: Batch, at: Moment) -> Terms:
        eps, kappa = self.ramped_eps(at), self.ramped(at, 1.0, self.options.kappa)
        embeddings = self.embed(embedder, batch.images)
        distance = distances(embeddings)
        triplets = random_triplets(batch.labels)
        logs = {"eps": eps, "kappa": kappa}
        loss = kappa * triplet_loss(distance, triplets, self.options.margin)
        if kappa < 1 and len(triplets[0]):
            box = self.box(embedder, batch.images, eps)
            logs["radius"] = box.radius.detach().norm(dim=1).mean().item()
            upper, lower = distance_bounds(box, embeddings)
            slack = looseness(distance, upper, lower)
            anchor, positive, negative = triplets
            loss = loss + (1 - kappa) * (slack[anchor, positive] + slack[anchor, negative]).mean()
        return Terms(loss, embeddings, logs)


def looseness(distance: Tensor, upper: Tensor, lower: Tensor) -> Tensor:
    """Reg: the larger gap between a distance and its two bounds."""
    return torch.maximum((distance - upper).abs(), (distance - lower).abs())
