"""Interval training of a classifier whose last layer is dropped for retrieval (Kakizaki et al., Eq. 33)."""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import nn

from holdfast.bounds import Box
from holdfast.bounds.activations import Relu
from holdfast.bounds.operations import Linear
from holdfast.errors import ConfigError
from holdfast.training.defences.base import Batch, Moment, Terms
from holdfast.training.defences.bounded import Bounded, BoundedOptions


class CIbpOptions(BoundedOptions):
    """κ goes from 1 to `kappa` on the ramp on which ε goes from 0 to `eps`."""

    name: Literal["c-ibp"] = "c-ibp"
    kappa: float = Field(default=0.5, ge=0, le=1)
    dim: int = Field(default=128, ge=1)
    """The embedder's dimension, which the classifier's layer takes."""
    ibp_init: bool = False


class CIbp(Bounded):
    """κ·CE(logits) + (1 − κ)·CE(worst logits): the true class at its lower bound, the others at their upper."""

    Options = CIbpOptions
    options: CIbpOptions

    def __init__(self, options: CIbpOptions, classes: int) -> None:
        super().__init__()
        self.options = options
        self.head = nn.Linear(options.dim, classes)

    def prepare(self, embedder: nn.Module) -> list[str]:
        said = super().prepare(embedder)
        dim = getattr(embedder, "dim", self.options.dim)
        if dim != self.options.dim:
            raise ConfigError(f"the embedding has {dim} dimensions; set defence.dim={dim}")
        return said

    def terms(self, embedder: nn.Module, batch: Batch, at: Moment) -> Terms:
        eps, kappa = self.ramped_eps(at), self.ramped(at, 1.0, self.options.kappa)
        embeddings = self.embed(embedder, batch.images)
        loss = kappa * F.cross_entropy(self.head(torch.relu(embeddings)), batch.labels)
        if kappa < 1:
            box = self.logits(self.box(embedder, batch.images, eps))
            true = F.one_hot(batch.labels, box.centre.shape[1]).bool()
            loss = loss + (1 - kappa) * F.cross_entropy(torch.where(true, box.lower, box.upper), batch.labels)
        return Terms(loss, embeddings, {"eps": eps, "kappa": kappa})

    def logits(self, features: Box) -> Box:
        """The box of the logits over a box of features."""
        return Linear(self.head).interval([Relu().interval([features], False)], False)

    def parameter_groups(self) -> list[dict[str, Any]]:
        return [{"params": list(self.head.parameters())}]
