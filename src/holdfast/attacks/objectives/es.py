"""ES: embedding shift."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from holdfast.attacks.objectives.base import Assessment, Objective, Wish
from holdfast.attacks.objectives.listed import MarkedList


@dataclass(frozen=True, eq=False)
class ShiftWish(Wish):
    """−‖f(q̃) − f(q)‖."""

    least: ClassVar[float] = -torch.inf

    origin: Tensor

    def assess(self, seen: Tensor) -> Assessment:
        loss = -(seen - self.origin).norm(dim=1)
        return Assessment(loss, loss.detach())


class EmbeddingShift(Objective):
    """The altered image's vector is as far from the clean one's as can be.

    The distance has no gradient at the clean image, so the search starts a little beside it. With
    only lists visible: empty the list of what it first held.
    """

    name = "es"
    wants = "move the vector as far as possible"
    needs = ()
    nudge = True
    in_ers, measures, part = True, "shift", "ES:D"

    def bind(self, rows: slice, clean: Tensor) -> Wish:
        return ShiftWish(clean)

    def bind_lists(self, rows: slice, clean: Tensor) -> Wish:
        return MarkedList(False, clean.shape[1], clean)
