"""Anti-collapse triplet (Zhou et al. 2021): positive and negative are brought together.

The defaults are those of Kakizaki et al., appendix B, Eq. 31 and 32. The form that Tian et al. compare is the same
adversary with margin 0.2, semi-hard triplets and normalised embeddings: `defence.margin=0.2`,
`defence.sampling=semi-hard`, `model.unit_norm=true`.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import nn

from holdfast.training.adversary import Found, Triple, goal_of
from holdfast.training.defences.adversarial import Adversarial, AdversarialOptions
from holdfast.training.defences.base import Moment


class ActOptions(AdversarialOptions):
    """A `step` that is left open is a tenth of eps; of fewer than 10 steps each is 1.2·eps/`attack_steps`, as in the
    other defences, so that eps is in reach."""

    name: Literal["act"] = "act"
    eps: float = Field(default=0.2, gt=0, le=1)
    attack_steps: int = Field(default=20, ge=1)
    margin: float = Field(default=1.0, gt=0)
    sampling: Literal["random", "semi-hard"] = "random"


class Act(Adversarial):
    """Triplet loss on (a, p + δₚ, n + δₙ), the perturbations chosen to bring p and n together."""

    Options = ActOptions
    moving = 2
    knows_clean = False
    options: ActOptions
    unit_norm = None

    def __init__(self, options: ActOptions, classes: int) -> None:
        super().__init__()
        self.options = options

    @property
    def step(self) -> float:
        o = self.options
        if o.step is not None:
            return o.step
        return 0.1 * o.eps if o.attack_steps >= 10 else 1.2 * o.eps / o.attack_steps

    def attack(self, embedder: nn.Module, images: Triple, clean: Triple | None, at: Moment) -> Found:
        return self.search(embedder, images, clean, "pn", goal_of("together", None, self.attention), at)
