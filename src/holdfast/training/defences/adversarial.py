"""What defences that train on perturbed triplets share: triplets of pairs, the search's settings, telemetry."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from holdfast.errors import ConfigError
from holdfast.models.modes import evaluating
from holdfast.training.adversary import (
    Found,
    Goal,
    Moves,
    Triple,
    apart,
    collapseness,
    hardness,
    perturb,
)
from holdfast.training.defences.base import Batch, Defence, DefenceOptions, Moment, Terms
from holdfast.training.losses import distances, paired_triplets

ATTENTION = 10.0
"""λ of the C in the log, for defences that have none of their own."""


class AdversarialOptions(DefenceOptions):
    """Perturbations within eps (ℓ∞), by `attack_steps` signed steps of `step`."""

    eps: float = Field(default=8 / 255, gt=0, le=1)
    attack_steps: int = Field(default=16, ge=1)
    step: float | None = Field(default=None, gt=0)
    """In pixel values; None: 1/255, or 1.2·eps/`attack_steps` where that is more, so that eps is in reach."""
    progressive: bool = False
    """The step grows with the run, from nothing to `step`."""
    margin: float = Field(default=0.2, gt=0)
    sampling: Literal["random", "semi-hard"] = "semi-hard"
    width: float | None = Field(default=None, gt=0)
    """η₀ of the semi-hard band d(a,p) < d(a,n) < d(a,p) + η; the margin where it is left open."""
    narrowing: bool = False
    """η falls over the run to three quarters of η₀ (Eq. 32)."""
    early_stop: bool = True
    """The search ends where its loss is zero: the adversary has what it wants."""
    warm_up: float = Field(default=0.0, ge=0, le=1)
    """Share of the run without an adversary."""


class Adversarial(Defence):
    """Triplet loss on triplets that an adversary perturbed. The anchor's pair makes the triplet's first two.

    The clean batch is embedded once, in eval mode and without gradients: for the choice of negatives, for
    what the adversary leaves alone, and for the log.
    """

    options: AdversarialOptions
    unit_norm: ClassVar[bool | None] = True
    attention: float = ATTENTION
    with_clean = False
    """Whether the loss also needs gradients through the clean anchors and positives."""

    @abstractmethod
    def attack(self, embedder: nn.Module, images: Triple, clean: Triple, at: Moment) -> Found:
        """The perturbed triplets."""

    def loss(self, found: Found, embeddings: Triple, clean: Triple, at: Moment) -> Tensor:
        """The model's loss on the perturbed triplets, with the hinge that the papers leave out in print."""
        return torch.relu(hardness(embeddings) + self.options.margin).mean()

    def terms(self, embedder: nn.Module, batch: Batch, at: Moment) -> Terms:
        with evaluating(embedder), torch.no_grad():
            known = embedder(batch.images)
        chosen = self._triplets(known, batch.labels, at)
        if not len(chosen[0]):
            raise ConfigError(
                "a batch holds no pair of one class beside another class; in a mixed defence put this part first"
            )
        images = Triple(*(batch.images[rows] for rows in chosen))
        clean = Triple(*(known[rows] for rows in chosen))
        still = clean
        self.attention = self.attend(known, batch.labels)
        logs = {
            "hardness": hardness(clean).mean().item(),
            "collapseness": collapseness(clean, self.attention).item(),
            "attention": self.attention,
        }
        if at.done < self.options.warm_up:
            found = Found(images)
        else:
            found = self.attack(embedder, images, clean, at)
        rows = [found.images.of("apn")]
        if self.with_clean and found.gradients:
            rows += [images.a, images.p]
        parts = embedder(torch.cat(rows)).split(len(images.a))
        if len(parts) > 3:
            clean = replace(clean, a=parts[3], p=parts[4])
        embeddings = Triple(*parts[:3])
        logs["gradients"] = float(found.gradients)
        logs |= self.shifts(apart(embeddings.of(found.moved).detach(), still.of(found.moved)).mean(), at)
        loss = self.loss(found, embeddings, clean, at)
        return Terms(loss, known, logs)

    def shifts(self, shift: Tensor, at: Moment) -> dict[str, float]:
        """What the log says of how far the adversary shifted the embeddings of the images that it moved."""
        return {"shift": shift.item()}

    def attend(self, known: Tensor, labels: Tensor) -> float:
        """λ of this step's collapseness."""
        return ATTENTION

    def search(
        self,
        embedder: nn.Module,
        images: Triple,
        clean: Triple,
        moves: Moves,
        goal: Goal,
        at: Moment,
        jitter: float = 0.0,
    ) -> Found:
        """The adversary's search with this defence's settings."""
        o, step = self.options, self.step
        if o.progressive:
            step *= (at.step + 1) / at.steps
        return perturb(
            embedder,
            images,
            clean,
            moves,
            goal,
            eps=o.eps,
            steps=o.attack_steps,
            step=step,
            jitter=jitter,
            early_stop=o.early_stop,
        )

    @property
    def step(self) -> float:
        """The size of a step, in pixel values."""
        o = self.options
        return max(1 / 255, 1.2 * o.eps / o.attack_steps) if o.step is None else o.step

    def _triplets(self, known: Tensor, labels: Tensor, at: Moment) -> tuple[Tensor, Tensor, Tensor]:
        o = self.options
        if o.sampling == "random":
            return paired_triplets(labels)
        width = o.width or o.margin
        if o.narrowing:
            width *= 1 - ((at.step + 1) / (2 * at.steps)) ** 2
        return paired_triplets(labels, distances(known), width)
