"""What defences that train on bounds share: the embedder's graph, ramps, and IBP initialisation."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, Self

from pydantic import Field, model_validator
from torch import Tensor, nn

from holdfast.bounds import Box, Graph, image_box, interval_bounds, trace
from holdfast.bounds.interval import all_boxes
from holdfast.bounds.operations import Statistics
from holdfast.errors import ConfigError
from holdfast.training.adversary import Search, Triple, perturb
from holdfast.training.batch_norm import held, recorded
from holdfast.training.defences.base import Defence, DefenceOptions, Moment
from holdfast.training.processes import unshared
from holdfast.training.schedules import ramp, smooth_ramp


class BoundedOptions(DefenceOptions):
    """`eps` is reached between two shares of the run; the box is the paper's (not clipped) unless `clip`."""

    eps: float = Field(default=0.2, ge=0, le=1)
    clip: bool = False
    ramp_start: float = Field(default=0.05, ge=0, le=1)
    ramp_end: float = Field(default=0.35, ge=0, le=1)
    ramp: Literal["linear", "smooth"] = "linear"
    """`smooth`: eps first grows by the fourth power. Deep networks with batch norm need it: their first boxes are
    hundreds of times as wide as those of `small`."""
    ibp_init: bool = True
    """Small first weights, so that the first bounds are not already far too wide; pretrained weights stay."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.ramp_start > self.ramp_end:
            raise ValueError(f"the ramp begins at {self.ramp_start} and ends at {self.ramp_end}")
        return self


class Bounded(Defence):
    """A defence whose loss contains interval bounds of the embedder."""

    options: BoundedOptions
    lower = "never"
    unit_norm = False

    def __init__(self) -> None:
        super().__init__()
        self._graph: Graph | None = None
        self._statistics: dict[nn.Module, Statistics] = {}

    def prepare(self, embedder: nn.Module) -> list[str]:
        check_features(embedder)
        # A network that bounds cannot pass is refused before the run begins.
        trace(embedder.train(), as_is=True)
        if not self.options.ibp_init:
            return []
        if getattr(embedder, "pretrained", False):
            return [
                "the pretrained weights stay as they are: defence.ibp_init is for weights drawn at random"
            ]
        initialise(embedder)
        return []

    def embed(self, embedder: nn.Module, images: Tensor) -> Tensor:
        """The clean pass of a step: the vectors. Boxes of the same step then normalise by its batch statistics."""
        with recorded(unshared(embedder)) as self._statistics:
            vectors: Tensor = embedder(images)
        return vectors

    def box(self, embedder: nn.Module, images: Tensor, eps: float) -> Box:
        """The box of the features; its centre is not the clean embedding, except through affine layers."""
        return interval_bounds(self.graph(embedder), image_box(images, eps, clip=self.options.clip))

    def boxes(self, embedder: nn.Module, images: Tensor, eps: float) -> list[Box]:
        """The boxes of the images and of every step of `graph`; the last is `box`."""
        return all_boxes(self.graph(embedder), image_box(images, eps, clip=self.options.clip), rounding=False)

    def graph(self, embedder: nn.Module) -> Graph:
        """The network with the statistics of this step's clean pass, where batch norm learns."""
        if self._graph is None:
            self._graph = trace(unshared(embedder), as_is=True)
        return self._graph.under(self._statistics) if self._statistics else self._graph

    def perturbed(
        self, embedder: nn.Module, images: Tensor, goal: Callable[[Tensor], Tensor], search: Search
    ) -> Tensor:
        """Images within `search.eps` whose embeddings lower `goal`; batch norm as in the clean pass."""
        nobody = images[:0]
        with held(self._statistics, detached=True):
            found = perturb(embedder, Triple(images, nobody, nobody), None, "a", lambda z: goal(z.a), search)
        return found.images.a

    def embed_perturbed(self, embedder: nn.Module, images: Tensor) -> Tensor:
        """Vectors of other images than the clean ones; batch norm as in the clean pass, with gradients through it."""
        with held(self._statistics):
            vectors: Tensor = embedder(images)
        return vectors

    def ramped_eps(self, at: Moment) -> float:
        """eps at this moment of the run."""
        o = self.options
        if o.ramp == "linear":
            return self.ramped(at, 0.0, o.eps)
        return smooth_ramp(at.done, o.ramp_start, o.ramp_end, o.eps)

    def ramped(self, at: Moment, first: float, last: float) -> float:
        """A value that goes from `first` to `last` over the ramp."""
        return ramp(at.done, self.options.ramp_start, self.options.ramp_end, first, last)


def check_features(embedder: nn.Module) -> None:
    """Refuse an embedder whose boxes, which are of the features, would be compared with normalised embeddings."""
    if getattr(embedder, "unit_norm", False):
        raise ConfigError(
            "defences that train on bounds compare boxes of unnormalised features; set model.unit_norm=false"
        )


def initialise(embedder: nn.Module) -> None:
    """Normal weights of standard deviation √(2π)/fan-in on all convolutions and all but the last linear layer.

    With them the mean size of a box neither grows nor shrinks from layer to layer (Shi et al. 2021). Batch norm keeps
    its scale 1 and shift 0: it divides boxes and images by the same number.
    """
    layers = [m for m in embedder.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    for layer in layers[:-1]:
        fan_in = layer.weight[0].numel()
        nn.init.normal_(layer.weight, std=math.sqrt(2 * math.pi) / fan_in)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
