"""Certified-margin training: the worst case of a query attack's exact linear test, as a hinge (ours)."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from holdfast.training.defences.base import Batch, Moment, Terms
from holdfast.training.defences.bounded import Bounded, BoundedOptions
from holdfast.training.losses import random_triplets


class CertifiedMarginOptions(BoundedOptions):
    """`margin` is in units of the embeddings' spread s, which makes the loss blind to scale."""

    name: Literal["certified-margin"] = "certified-margin"
    margin: float = Field(default=0.5, gt=0)
    kappa: float = Field(default=0.1, ge=0, le=1)


class CertifiedMargin(Bounded):
    """κ·relu(margin − M_clean/s) + (1 − κ)·relu(margin − M/s), M the worst signed distance to a bisector.

    M = [‖n‖² − ‖p‖² − 2mₐ·(n − p) − 2rₐ·|n − p|] / (2‖n − p‖), over the anchor's box (mₐ, rₐ): n
    stays farther than p under any attack on the anchor if and only if M > 0, given the box. Where M
    is negative a smaller embedding has a smaller loss; dividing by the RMS spread s, with gradient,
    takes that way out.
    """

    Options = CertifiedMarginOptions
    options: CertifiedMarginOptions
    per_class = 4

    def __init__(self, options: CertifiedMarginOptions, classes: int) -> None:
        super().__init__()
        self.options = options

    def terms(self, embedder: nn.Module, batch: Batch, at: Moment) -> Terms:
        eps, kappa = self.ramped_eps(at), self.ramped(at, 1.0, self.options.kappa)
        embeddings = self.embed(embedder, batch.images)
        box = self.box(embedder, batch.images, eps)
        scale = spread(embeddings)
        anchor, positive, negative = random_triplets(batch.labels)
        near, far = embeddings[positive], embeddings[negative]
        step = far - near
        gap = step.norm(dim=1).clamp(min=1e-9)
        level = far.square().sum(1) - near.square().sum(1)
        clean = (level - 2 * (embeddings[anchor] * step).sum(1)) / (2 * gap)
        centre, radius = box.centre[anchor], box.radius[anchor]
        worst = (level - 2 * (centre * step).sum(1) - 2 * (radius * step.abs()).sum(1)) / (2 * gap)
        margin = self.options.margin
        loss = kappa * torch.relu(margin - clean / scale).mean()
        loss = loss + (1 - kappa) * torch.relu(margin - worst / scale).mean()
        # Only ratios count in the loss; this keeps the scale itself near 1.
        loss = loss + 0.01 * scale.log().square()
        logs = {"eps": eps, "kappa": kappa, "certified_pairs": (worst > 0).float().mean().item()}
        logs["radius"] = box.radius.detach().norm(dim=1).mean().item()
        return Terms(loss, embeddings, logs)


def spread(embeddings: Tensor) -> Tensor:
    """s: the root mean square distance of embeddings to their mean."""
    return (embeddings - embeddings.mean(0)).square().sum(1).mean().clamp(min=1e-18).sqrt()
