"""Fine-tuning to the candidates with tighter bounds (Kakizaki, Fukuchi, Sakuma, Eq. 21)."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import nn

from holdfast import models
from holdfast.bounds import distance_bounds
from holdfast.data import Dataset, ImageSet, draw
from holdfast.errors import ConfigError
from holdfast.training.defences.base import Batch, Moment, Terms
from holdfast.training.defences.bounded import Bounded, BoundedOptions, check_features
from holdfast.training.defences.tbt import looseness
from holdfast.training.losses import distances
from holdfast.training.samplers import Sampler, Shuffled


class FctbOptions(BoundedOptions):
    """`start` is the run to fine-tune; the candidates are those that an evaluation with this draw uses."""

    name: Literal["fctb"] = "fctb"
    start: str
    kappa: float = Field(default=0.1, ge=0, le=1)
    queries: int = Field(default=1000, ge=1)
    candidates: int = Field(default=1000, ge=2)
    draw_seed: int = 0
    ibp_init: bool = False


class Fctb(Bounded):
    """κ·d(f₀(c₁), f(c₁)) + (1 − κ)·Reg(c₁, c₂) over pairs of candidates; no labels are used."""

    Options = FctbOptions
    options: FctbOptions

    def __init__(self, options: FctbOptions, classes: int) -> None:
        super().__init__()
        self.options = options
        self._before: nn.Module | None = None

    def images(self, dataset: Dataset) -> ImageSet:
        drawn = draw(dataset.test, self.options.queries, self.options.candidates, self.options.draw_seed)
        return dataset.test.take(drawn[1])

    def sampler(self, labels: NDArray[np.int64], batch: int, seed: int) -> Sampler:
        return Shuffled(len(labels), batch, seed)

    def prepare(self, embedder: nn.Module) -> list[str]:
        check_features(embedder)
        start = models.load(Path(self.options.start))
        try:
            embedder.load_state_dict(start.state_dict())
        except RuntimeError:
            raise ConfigError(
                f"{self.options.start} is of another network than this run; give the same model, dim and data"
            ) from None
        # Not a submodule: f₀ is neither trained nor part of the state that is saved.
        object.__setattr__(self, "_before", copy.deepcopy(start).eval())
        return []

    def terms(self, embedder: nn.Module, batch: Batch, at: Moment) -> Terms:
        assert self._before is not None
        kappa = self.options.kappa
        embeddings = self.embed(embedder, batch.images)
        with torch.no_grad():
            before = self._before(batch.images)
        kept = (embeddings - before).norm(dim=1).mean()
        upper, lower = distance_bounds(self.box(embedder, batch.images, self.options.eps), embeddings)
        slack = looseness(distances(embeddings), upper, lower).mean()
        return Terms(kappa * kept + (1 - kappa) * slack, embeddings, {"moved": kept.item()})
