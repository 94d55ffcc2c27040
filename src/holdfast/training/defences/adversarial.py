"""What defences that train on perturbed triplets share: triplets of pairs, the search's settings, telemetry."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from holdfast.errors import ConfigError
from holdfast.models.modes import evaluating
from holdfast.training.adversary import (
    Found,
    Goal,
    Moves,
    Search,
    Triple,
    apart,
    collapseness,
    hardness,
    perturb,
)
from holdfast.training.defences.base import Batch, Defence, DefenceOptions, Moment, Terms
from holdfast.training.losses import distances, paired_triplets
from holdfast.training.samplers import Sampler
from holdfast.training.schedules import ramp

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
    eps_ramp: float = Field(default=0.0, ge=0, le=1)
    """Share of the run after the warm-up over which eps and `step` grow from nothing to their values."""
    steps_ramp: float = Field(default=0.0, ge=0, le=1)
    """Share of the run after the warm-up over which the steps grow from 1 to `attack_steps`; each then reaches
    as far as all of them would."""
    start: Literal["clean", "random", "kept"] = "clean"
    """Where a search begins: at the clean images, at a random point within eps, or where the last search for the same
    image ended (Shafahi et al. 2019, "free" training). Crops and flips move an image away from what was kept."""


class Adversarial(Defence):
    """Triplet loss on triplets that an adversary perturbed. The anchor's pair makes the triplet's first two.

    Where the choice of negatives or the adversary needs them, the clean images are embedded once, in eval mode and
    without gradients. Elsewhere the log takes what the search and the loss compute anyway; where that holds no clean
    image (`start`), it says of no shift.
    """

    options: AdversarialOptions
    lower = "measured"
    unit_norm: ClassVar[bool | None] = True
    attention: float = ATTENTION
    _kept: Tensor
    _numbers: Triple | None = None
    """The numbers of the images of this step's triplets."""
    with_clean = False
    """Whether the loss also needs gradients through the clean anchors and positives."""
    knows_clean = True
    """Whether the adversary looks at the clean embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self._images = 0

    @property
    @abstractmethod
    def moving(self) -> float:
        """How many of a triplet's three images move, on average over batches."""

    def gradients(self, batch: int) -> float:
        """Image gradients of a step, if no search ends early."""
        o = self.options
        searched = 1 - o.warm_up
        steps = o.attack_steps * (1 - o.steps_ramp) + o.steps_ramp * (o.attack_steps + 1) / 2
        trained = 3 + 2 * self.with_clean * searched
        return batch // 2 * (self.moving * steps * searched + trained)

    def sampler(self, labels: NDArray[np.int64], batch: int, seed: int) -> Sampler:
        self._images = len(labels)
        return super().sampler(labels, batch, seed)

    def prepare(self, embedder: nn.Module) -> list[str]:
        if self.options.start == "kept":
            shape = (self._images, *embedder.spec.shape)  # type: ignore[misc]
            # In shares of eps, 127 for the whole; saved, so that a resumed run is the same.
            self.register_buffer("_kept", torch.zeros(shape, dtype=torch.int8))
        return super().prepare(embedder)

    @abstractmethod
    def attack(self, embedder: nn.Module, images: Triple, clean: Triple | None, at: Moment) -> Found:
        """The perturbed triplets; `clean` are their embeddings, where `knows_clean`."""

    def loss(self, found: Found, embeddings: Triple, clean: Triple, at: Moment) -> Tensor:
        """The model's loss on the perturbed triplets, with the hinge that the papers leave out in print."""
        return torch.relu(hardness(embeddings) + self.options.margin).mean()

    def terms(self, embedder: nn.Module, batch: Batch, at: Moment) -> Terms:
        known = None
        if self.knows_clean or self.options.sampling == "semi-hard":
            with evaluating(embedder), torch.no_grad():
                known = embedder(batch.images)
        chosen = self._triplets(known, batch.labels, at)
        if not len(chosen[0]):
            raise ConfigError(
                "a batch holds no pair of one class beside another class; in a mixed defence put this part first"
            )
        images = Triple(*(batch.images[rows] for rows in chosen))
        self._numbers = None if batch.numbers is None else Triple(*(batch.numbers[rows] for rows in chosen))
        clean = None if known is None else Triple(*(known[rows] for rows in chosen))
        if known is not None:
            self.attention = self.attend(known, batch.labels)
        if at.done < self.options.warm_up:
            found = Found(images)
        else:
            found = self.attack(embedder, images, clean, at)
        rows = [found.images.of("apn")]
        if self.with_clean and found.gradients:
            rows += [images.a, images.p]
        parts = embedder(torch.cat(rows)).split(len(images.a))
        embeddings = Triple(*parts[:3])
        if clean is None:
            clean = Triple(*(part.detach() for part in parts[:3]))
            if found.first is not None:
                clean = clean.moved(found.moved, found.first)
        logs = {
            "hardness": hardness(clean).mean().item(),
            "collapseness": collapseness(clean, self.attention).item(),
            "attention": self.attention,
            "gradients": float(found.gradients),
        }
        if known is not None or found.first is not None or not found.gradients:
            logs |= self.shifts(apart(embeddings.of(found.moved).detach(), clean.of(found.moved)).mean(), at)
        if len(parts) > 3:
            loss = self.loss(found, embeddings, replace(clean, a=parts[3], p=parts[4]), at)
        else:
            loss = self.loss(found, embeddings, clean, at)
        if known is not None:
            return Terms(loss, known, logs)
        return Terms(loss, clean.of("apn"), logs, torch.cat([batch.labels[rows] for rows in chosen]))

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
        clean: Triple | None,
        moves: Moves,
        goal: Goal,
        at: Moment,
        jitter: float = 0.0,
    ) -> Found:
        """The adversary's search with this defence's settings."""
        o = self.options
        plan = replace(self.plan(at), jitter=1.0 if o.start == "random" else jitter)
        if o.start != "kept":
            return perturb(embedder, images, clean, moves, goal, plan)
        origin = images.of(moves)
        assert self._numbers is not None, "what was kept is known by the images' numbers"
        numbers = self._numbers.of(moves)
        start = origin + self._kept[numbers] * (plan.eps / 127)
        found = perturb(embedder, images, clean, moves, goal, plan, start)
        change = (found.images.of(moves) - origin) * (127 / plan.eps)
        self._kept[numbers] = change.round().clamp(-127, 127).to(torch.int8)
        return found

    def plan(self, at: Moment) -> Search:
        """How far and in how many steps the adversary goes at this moment of the run."""
        o, begin = self.options, self.options.warm_up
        left = 1 - begin
        grown = ramp(at.done, begin, begin + o.eps_ramp * left, 1 / at.steps, 1.0) if o.eps_ramp else 1.0
        share = ramp(at.done, begin, begin + o.steps_ramp * left, 0.0, 1.0) if o.steps_ramp else 1.0
        steps = min(o.attack_steps, 1 + int(share * o.attack_steps))
        step = self.step * grown * o.attack_steps / steps
        if o.progressive:
            step *= (at.step + 1) / at.steps
        return Search(o.eps * grown, steps, step, early_stop=o.early_stop)

    @property
    def step(self) -> float:
        """The size of a step, in pixel values."""
        o = self.options
        return max(1 / 255, 1.2 * o.eps / o.attack_steps) if o.step is None else o.step

    def _triplets(self, known: Tensor | None, labels: Tensor, at: Moment) -> tuple[Tensor, Tensor, Tensor]:
        o = self.options
        if o.sampling == "random" or known is None:
            return paired_triplets(labels)
        width = o.width or o.margin
        if o.narrowing:
            width *= 1 - ((at.step + 1) / (2 * at.steps)) ** 2
        return paired_triplets(labels, distances(known), width)
