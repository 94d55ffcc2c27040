"""Several defences at once: the weighted sum of their losses on the same batch."""

from __future__ import annotations

from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, SerializeAsAny, field_validator, model_validator
from torch import nn

from holdfast.models import CandidateSide
from holdfast.training.defences.base import Batch, Defence, DefenceOptions, Moment, Terms
from holdfast.training.samplers import Sampler


class MixedOptions(DefenceOptions):
    """`parts` are tables of other defences; the first one chooses the batches."""

    name: Literal["mixed"] = "mixed"
    parts: list[SerializeAsAny[DefenceOptions]] = Field(min_length=2)
    weights: list[float]

    @field_validator("parts", mode="before")
    @classmethod
    def _choose(cls, value: Any) -> Any:
        from holdfast.training.defences import defence_class

        if not isinstance(value, list):
            return value
        return [
            defence_class(part.get("name")).Options.model_validate(part) if isinstance(part, dict) else part
            for part in value
        ]

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if len(self.weights) != len(self.parts) or min(self.weights) < 0:
            raise ValueError(f"{len(self.parts)} parts take as many weights, none below 0")
        return self


class Mixed(Defence):
    """Users want both columns: for example `ca-tride` against attacks and `certified-margin` for proofs.

    Embeddings are not normalised unless the config says so, because defences on bounds need that.
    """

    Options = MixedOptions
    unit_norm = False

    def __init__(self, options: MixedOptions, classes: int) -> None:
        from holdfast.training.defences import build_defence

        super().__init__()
        self.options = options
        self.parts = nn.ModuleList(build_defence(part, classes) for part in options.parts)
        asked = {part.lower for part in self._each()}
        self.lower = "never" if "never" in asked else "measured" if "measured" in asked else "on request"

    def _each(self) -> list[Defence]:
        return [part for part in self.parts if isinstance(part, Defence)]

    @property
    def candidate_side(self) -> CandidateSide | None:
        return next((part.candidate_side for part in self._each() if part.candidate_side is not None), None)

    @property
    def dim(self) -> int | None:
        return next((part.dim for part in self._each() if part.dim is not None), None)

    def sampler(self, labels: NDArray[np.int64], batch: int, seed: int) -> Sampler:
        # Every part sees what there is to train on, and may refuse it.
        first, *_ = [part.sampler(labels, batch, seed) for part in self._each()]
        return first

    def prepare(self, embedder: nn.Module) -> list[str]:
        said = [line for part in self._each() for line in part.prepare(embedder)]
        return list(dict.fromkeys(said))

    def gradients(self, batch: int) -> float:
        return sum(part.gradients(batch) for part in self._each())

    def terms(self, embedder: nn.Module, batch: Batch, at: Moment) -> Terms:
        found = [part.terms(embedder, batch, at) for part in self._each()]
        loss = sum(
            (weight * terms.loss for weight, terms in zip(self.options.weights, found, strict=True)),
            start=found[0].loss.new_zeros(()),
        )
        logs = {name: value for terms in reversed(found) for name, value in terms.logs.items()}
        logs |= {
            f"loss_{part.name}": terms.loss.item()
            for part, terms in zip(self.options.parts, found, strict=True)
        }
        return Terms(loss, found[0].embeddings, logs, found[0].labels)

    def parameter_groups(self) -> list[dict[str, Any]]:
        return [group for part in self._each() for group in part.parameter_groups()]
