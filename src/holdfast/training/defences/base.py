"""What a defence is: the loss that one training step descends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn

from holdfast.data import Dataset, ImageSet
from holdfast.models import CandidateSide
from holdfast.training.arithmetic import Lower
from holdfast.training.samplers import ClassGroups, Sampler


class DefenceOptions(BaseModel):
    """The settings of a defence: the `[defence]` table of a config."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    name: str


@dataclass(frozen=True)
class Batch:
    """One step's images (floats in [0, 1], NCHW) and their class numbers."""

    images: Tensor
    labels: Tensor
    numbers: Tensor | None = None
    """Which images of the training set they are."""


@dataclass(frozen=True)
class Moment:
    """Where in a run a step is."""

    step: int
    steps: int

    @property
    def done(self) -> float:
        """The share of the run that is over before this step."""
        return self.step / self.steps


@dataclass(frozen=True)
class Terms:
    """What a step computed: the loss, clean embeddings for telemetry, values for the log.

    `labels` are those of the embeddings, where these are not of the whole batch.
    """

    loss: Tensor
    embeddings: Tensor
    logs: dict[str, float] = field(default_factory=dict)
    labels: Tensor | None = None


class Defence(nn.Module, ABC):
    """A way of training an embedder.

    A module, so that what it learns beside the embedder (a margin loss's β) is saved and resumed
    with it. Random draws use torch's default generator, which the loop seeds for each step.
    """

    Options: ClassVar[type[DefenceOptions]]
    per_class: ClassVar[int] = 2
    """Images of one class that a batch holds together."""
    lower: Lower = "on request"
    """Whether the network may compute in a lower precision while it trains."""
    says: ClassVar[str] = ""
    """What tables must say of its embedders, if anything."""
    unit_norm: ClassVar[bool | None] = None
    """Whether embeddings are normalised where the config leaves it open; None: the network's habit."""

    def sampler(self, labels: NDArray[np.int64], batch: int, seed: int) -> Sampler:
        """Which images make up a step; data that the defence cannot train on is refused here."""
        return ClassGroups(labels, batch, self.per_class, seed)

    @property
    def candidate_side(self) -> CandidateSide | None:
        """How the embedder makes candidates' vectors of queries'; None: they are the same."""
        return None

    @property
    def dim(self) -> int | None:
        """How many dimensions embeddings must have; None: as the config says."""
        return None

    def gradients(self, batch: int) -> float:
        """Image gradients that a step takes on average: images through the network and back."""
        return batch

    def images(self, dataset: Dataset) -> ImageSet:
        """What the defence trains on: the training part, unless it says otherwise."""
        return dataset.train

    def prepare(self, embedder: nn.Module) -> list[str]:
        """Bring the first weights into the form that the defence wants, before the first step; what to say of it."""
        return []

    @abstractmethod
    def terms(self, embedder: nn.Module, batch: Batch, at: Moment) -> Terms:
        """The loss of one batch."""

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Optimiser groups for what the defence itself learns."""
        return []
