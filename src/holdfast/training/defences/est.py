"""Embedding-shifted triplets (Zhou et al. 2020): every image is pushed as far from itself as it goes."""

from __future__ import annotations

from typing import Literal

from torch import nn

from holdfast.training.adversary import SHIFT_JITTER, Found, Triple, goal_of
from holdfast.training.defences.adversarial import Adversarial, AdversarialOptions
from holdfast.training.defences.base import Moment


class EstOptions(AdversarialOptions):
    """The direct form: the shift d(x, x̃) itself is raised, whatever the triplet."""

    name: Literal["est"] = "est"


class Est(Adversarial):
    """Triplet loss on images whose embeddings were shifted most."""

    Options = EstOptions
    moving = 3

    def __init__(self, options: EstOptions, classes: int) -> None:
        super().__init__()
        self.options = options

    def attack(self, embedder: nn.Module, images: Triple, clean: Triple | None, at: Moment) -> Found:
        assert clean is not None, "this adversary looks at the clean embeddings"
        goal = goal_of("shift", clean, self.attention)
        return self.search(embedder, images, clean, "apn", goal, at, jitter=SHIFT_JITTER)
