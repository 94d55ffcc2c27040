"""Any adversary of triplet training: who moves, what for, and in which steps are chosen apart."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator
from torch import Tensor, nn

from holdfast.training.adversary import SHIFT_JITTER, Found, Moves, Objective, Triple, goal_of
from holdfast.training.defences.adversarial import ATTENTION, Adversarial, AdversarialOptions
from holdfast.training.defences.base import Moment


class ComposedOptions(AdversarialOptions):
    """The adversaries of `est`, `act` and CAP are three of the combinations; the schedule is `step`, `progressive`."""

    name: Literal["adversarial"] = "adversarial"
    moves: Moves = "apn"
    objective: Objective = "collapseness"
    attention: float = ATTENTION
    """λ of the objective `collapseness`."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.moves == "a" and self.objective == "together":
            raise ValueError(
                "positive and negative come together only where they move: moves = 'pn' or 'apn'"
            )
        return self


class Composed(Adversarial):
    """Triplet loss on what the chosen adversary makes of the triplets."""

    Options = ComposedOptions
    options: ComposedOptions

    def __init__(self, options: ComposedOptions, classes: int) -> None:
        super().__init__()
        self.options = options

    @property
    def moving(self) -> float:
        return len(self.options.moves)

    def attend(self, known: Tensor, labels: Tensor) -> float:
        return self.options.attention

    def attack(self, embedder: nn.Module, images: Triple, clean: Triple | None, at: Moment) -> Found:
        assert clean is not None, "this adversary looks at the clean embeddings"
        o = self.options
        goal = goal_of(o.objective, clean, self.attention)
        jitter = SHIFT_JITTER if o.objective == "shift" else 0.0
        return self.search(embedder, images, clean, o.moves, goal, at, jitter=jitter)
