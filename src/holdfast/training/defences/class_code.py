"""Class codes (ours): cross-entropy on the worst scores within eps, for a first hit that is surely of the right class.

The query's vector has a score for each class, and a candidate is stored as its softmax (`models.sides.ClassCode`): a
candidate of the query's class is the nearest as long as that class keeps the largest score, by enough where codes are
not of one class alone. It is a closed-set method: the classes are those of the training set.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from holdfast import models
from holdfast.bounds import Box, Graph, image_box, interval_bounds
from holdfast.bounds.operations import Linear
from holdfast.data import Dataset, ImageSet
from holdfast.errors import ConfigError
from holdfast.models import CandidateSide
from holdfast.training.defences.base import Batch, Moment, Terms
from holdfast.training.defences.bounded import Bounded, BoundedOptions
from holdfast.training.samplers import Sampler, Shuffled

COARSE = 7
"""Sides of the pictures whose likeness the fine part keeps."""


class ClassCodeOptions(BoundedOptions):
    """`kappa` is the weight of the scores without an attack at the end of the ramp (1 at its start)."""

    name: Literal["class-code"] = "class-code"
    clip: bool = True
    ramp_end: float = Field(default=0.5, ge=0, le=1)
    kappa: float = Field(default=0.5, ge=0, le=1)
    temperature: float = Field(default=1.0, gt=0)
    """T of the candidates: p = softmax(z/T)."""
    fine: int = Field(default=8, ge=0, le=1024)
    """Dimensions of the fine part, which orders the candidates of a class; 0: none."""
    fine_weight: float = Field(default=0.3, ge=0)
    """β: how much the fine part counts beside the scores in a search."""
    fine_loss: float = Field(default=0.03, ge=0)
    """How much it counts in the loss."""


class ClassCode(Bounded):
    """κ·CE(z, y) + (1 − κ)·CE(ẑ, y), ẑ_j − ẑ_y the largest z_j − z_y over the box of the last layer's input.

    With W and b of the last layer, and m and r of the box before it, that is (W_j − W_y)m + |W_j − W_y|r + b_j − b_y.
    The fine part keeps, within a class, how alike the pictures are.
    """

    Options = ClassCodeOptions
    says = models.ClassCode.says
    options: ClassCodeOptions

    def __init__(self, options: ClassCodeOptions, classes: int) -> None:
        super().__init__()
        self.options = options
        self.classes = classes

    @property
    def candidate_side(self) -> CandidateSide:
        o = self.options
        return models.ClassCode(self.classes, o.temperature, o.fine, o.fine_weight if o.fine else 0.0)

    @property
    def dim(self) -> int:
        return self.classes + 1 + self.options.fine

    def images(self, dataset: Dataset) -> ImageSet:
        if dataset.split == "open":
            raise ConfigError(
                "class-code is for a closed set of classes, and an open split tests on others than it trains on; "
                "set data.split=closed"
            )
        return super().images(dataset)

    def sampler(self, labels: NDArray[np.int64], batch: int, seed: int) -> Sampler:
        """Plain batches: the scores need no partners."""
        return Shuffled(len(labels), batch, seed)

    def prepare(self, embedder: nn.Module) -> list[str]:
        said = super().prepare(embedder)
        # Nothing of the loss reaches the score that stays 0, so neither does any step.
        _, last = self._parts(embedder)
        with torch.no_grad():
            last.weight[self.classes].zero_()
            if last.bias is not None:
                last.bias[self.classes].zero_()
        return said

    def terms(self, embedder: nn.Module, batch: Batch, at: Moment) -> Terms:
        o = self.options
        eps, kappa = self.ramped(at, 0.0, o.eps), self.ramped(at, 1.0, o.kappa)
        vectors = self.embed(embedder, batch.images)
        scores, fine = vectors[:, : self.classes], vectors[:, self.classes + 1 :]
        loss = functional.cross_entropy(scores, batch.labels)
        alike = fine_loss(fine, batch.images, batch.labels) if o.fine else loss.new_zeros(())
        logs = {"eps": eps, "kappa": kappa, "right": _right(scores, batch.labels), "fine": alike.item()}
        if kappa < 1:
            body, last = self._parts(embedder)
            box = interval_bounds(body, image_box(batch.images, eps, clip=o.clip))
            bias = None if last.bias is None else last.bias[: self.classes]
            worst = worst_scores(box, last.weight[: self.classes], bias, batch.labels)
            loss = kappa * loss + (1 - kappa) * functional.cross_entropy(worst, batch.labels)
            logs["surely_right"] = _right(worst, batch.labels)
            if o.fine:
                moved = (box.radius @ last.weight[self.classes + 1 :].abs().T).norm(dim=1).mean()
                alike = kappa * alike + (1 - kappa) * moved
                logs["fine_moved"] = moved.item()
        loss = loss + o.fine_loss * alike
        return Terms(loss, scores, logs)

    def _parts(self, embedder: nn.Module) -> tuple[Graph, Linear]:
        """The network up to its last layer, and that layer."""
        split = self.graph(embedder).without_last()
        if split is None:
            raise ConfigError(
                "class-code needs a network that ends with a linear layer, and this one ends with something else; "
                "leave model.options.activation out, or choose another network"
            )
        return split


def worst_scores(box: Box, weight: Tensor, bias: Tensor | None, labels: Tensor) -> Tensor:
    """For each image and class j the largest z_j − z_y over the box of the last layer's input; 0 for j = y."""
    out = box.centre.new_zeros(len(labels), len(weight))
    for label in torch.unique(labels).tolist():
        mine = (labels == label).nonzero().squeeze(1)
        across = weight - weight[label]
        worst = box.centre[mine] @ across.T + box.radius[mine] @ across.abs().T
        out = out.index_copy(0, mine, worst if bias is None else worst + (bias - bias[label]))
    return out


def fine_loss(fine: Tensor, images: Tensor, labels: Tensor) -> Tensor:
    """How far ‖u − u'‖, u = y/‖y‖, is from how unlike two pictures of a class are; y is kept near length 1.

    Pictures are compared shrunk to `COARSE` pixels a side; within each batch their distances are brought to mean 1,
    and those of the directions should be the same.
    """
    small = functional.adaptive_avg_pool2d(images, COARSE).flatten(1)
    pair = (labels[:, None] == labels[None]).fill_diagonal_(False)
    length: Tensor = (fine.norm(dim=1) - 1).square().mean()
    if not bool(pair.any()):
        return length
    wanted = torch.cdist(small, small)[pair]
    u = functional.normalize(fine, dim=1)
    found = (2 - 2 * (u @ u.T)[pair]).clamp(min=1e-8).sqrt()
    stress: Tensor = (found - wanted / wanted.mean().clamp(min=1e-8)).square().mean()
    return stress + length


def _right(scores: Tensor, labels: Tensor) -> float:
    return (scores.argmax(1) == labels).float().mean().item()
