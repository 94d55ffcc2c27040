"""Margin loss with a learnable boundary β and distance-weighted negatives (Wu et al. 2017).

The loss and the sampling are those of pytorch-metric-learning: relu(d(a,p) − β + γ) +
relu(β − d(a,n) + γ) over the pairs that violate it, on normalised embeddings. It draws positives with
replacement, and β has no regulariser (ν = 0).
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field
from torch import nn

from holdfast.errors import ConfigError
from holdfast.training.defences.base import Batch, Defence, DefenceOptions, Moment, Terms


class MarginOptions(DefenceOptions):
    """`beta` is the boundary's first value, `margin` the γ on both sides of it."""

    name: Literal["margin"] = "margin"
    margin: float = Field(default=0.2, gt=0)
    beta: float = Field(default=1.2, gt=0)
    beta_lr: float = Field(default=5e-4, gt=0)
    beta_per_class: bool = True
    cutoff: float = Field(default=0.5, gt=0)
    far: float = Field(default=1.4, gt=0)
    """Negatives beyond this distance are not drawn: they violate nothing."""


class Margin(Defence):
    """Each same-class pair inside β − γ, each other-class pair outside β + γ; β is learned."""

    Options = MarginOptions
    per_class = 4
    unit_norm = True

    def __init__(self, options: MarginOptions, classes: int) -> None:
        super().__init__()
        from pytorch_metric_learning.losses import MarginLoss
        from pytorch_metric_learning.miners import DistanceWeightedMiner

        self.options = options
        self.loss = MarginLoss(
            margin=options.margin,
            beta=options.beta,
            learn_beta=True,
            num_classes=classes if options.beta_per_class else None,
        )
        self._choose = DistanceWeightedMiner(cutoff=options.cutoff, nonzero_loss_cutoff=options.far)

    def prepare(self, embedder: nn.Module) -> list[str]:
        if not getattr(embedder, "unit_norm", True):
            raise ConfigError("the margin loss compares normalised embeddings; leave model.unit_norm true")
        return []

    def terms(self, embedder: nn.Module, batch: Batch, at: Moment) -> Terms:
        embeddings = embedder(batch.images)
        triplets = self._choose(embeddings, batch.labels)
        loss = self.loss(embeddings, batch.labels, triplets)
        return Terms(loss, embeddings, {"beta": self.loss.beta.detach().mean().item()})

    def parameter_groups(self) -> list[dict[str, Any]]:
        return [{"params": list(self.loss.parameters()), "lr": self.options.beta_lr}]
