"""Triplet loss: the undefended baseline of every table."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import nn

from holdfast.training.defences.base import Batch, Defence, DefenceOptions, Moment, Terms
from holdfast.training.losses import distances, random_triplets, semi_hard_triplets, triplet_loss


class TripletOptions(DefenceOptions):
    """`sampling`: `random` negatives, or `semi-hard` ones within `width` beyond the positive."""

    name: Literal["triplet"] = "triplet"
    margin: float = Field(default=1.0, gt=0)
    sampling: Literal["random", "semi-hard"] = "random"
    width: float | None = Field(default=None, gt=0)
    """Of the semi-hard band; the margin where it is left open."""


class Triplet(Defence):
    """Mean of relu(d(a,p) − d(a,n) + margin) over every same-class pair of the batch."""

    Options = TripletOptions

    def __init__(self, options: TripletOptions, classes: int) -> None:
        super().__init__()
        self.options = options

    def terms(self, embedder: nn.Module, batch: Batch, at: Moment) -> Terms:
        embeddings = embedder(batch.images)
        distance = distances(embeddings)
        if self.options.sampling == "random":
            triplets = random_triplets(batch.labels)
        else:
            width = self.options.width or self.options.margin
            triplets = semi_hard_triplets(distance, batch.labels, width)
        return Terms(triplet_loss(distance, triplets, self.options.margin), embeddings)
