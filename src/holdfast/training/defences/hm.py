"""Hardness manipulation (Zhou and Patel 2022), as Tian et al. compare it: all of a triplet is perturbed."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from holdfast.training.adversary import Found, Triple, apart, hardness
from holdfast.training.defences.adversarial import Adversarial, AdversarialOptions
from holdfast.training.defences.base import Moment


class HmOptions(AdversarialOptions):
    """From the hardness of sampled triplets (the source) towards a destination."""

    name: Literal["hm"] = "hm"
    attack_steps: int = Field(default=32, ge=1)
    destination: Literal["gradual"] | float = "gradual"
    """A hardness, or `gradual`: −margin while the loss is large, rising to 0 as it falls."""
    structure: float = Field(default=0.5, ge=0)
    """Weight of the intra-class-structure term: a perturbed anchor stays nearer to its own than a positive does."""


class Hm(Adversarial):
    """The adversary lowers mean(min(0, H̃ − H_D)²): triplets as hard as the destination are let be."""

    Options = HmOptions
    moving = 3
    knows_clean = False
    with_clean = True
    options: HmOptions
    _last: Tensor

    def __init__(self, options: HmOptions, classes: int) -> None:
        super().__init__()
        self.options = options
        # The last step's loss, which `gradual` follows; saved, so that a resumed run is the same.
        self.register_buffer("_last", torch.full((), torch.inf))

    def attack(self, embedder: nn.Module, images: Triple, clean: Triple | None, at: Moment) -> Found:
        wanted = self.options.destination
        if wanted == "gradual":
            wanted = -float(self._last.clamp(0, self.options.margin))
        return self.search(
            embedder, images, clean, "apn", lambda z: (hardness(z) - wanted).clamp(max=0).square().mean(), at
        )

    def loss(self, found: Found, embeddings: Triple, clean: Triple, at: Moment) -> Tensor:
        loss = super().loss(found, embeddings, clean, at)
        self._last.copy_(loss.detach())
        if self.options.structure and found.gradients:
            moved = apart(clean.a, embeddings.a)
            loss = loss + self.options.structure * torch.relu(moved - apart(clean.a, clean.p)).mean()
        return loss
