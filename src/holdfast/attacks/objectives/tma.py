"""TMA: targeted mismatch (Tolias et al. 2019)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from holdfast.attacks.objectives.base import Assessment, Objective, Wish
from holdfast.attacks.objectives.listed import MarkedList


@dataclass(frozen=True, eq=False)
class MismatchWish(Wish):
    """1 − cos(f(q̃), target)."""

    target: Tensor
    """Unit vectors, B×D."""

    def assess(self, seen: Tensor) -> Assessment:
        loss = 1 - (functional.normalize(seen, dim=1) * self.target).sum(1)
        return Assessment(loss, loss.detach())


class TargetedMismatch(Objective):
    """The altered query's vector points where a target's does; one target for each image."""

    name = "tma"
    wants = "make the query's vector that of a target"
    needs = ("gallery", "targets")
    in_ers, draws, measures = True, "any", "cosine"

    def bind(self, rows: slice, clean: Tensor) -> Wish:
        vectors = self.candidates.like(clean).vectors
        # Several targets: the direction nearest to all of them.
        aims = functional.normalize(vectors[self.targets(rows).to(clean.device)], dim=2).mean(1)
        return MismatchWish(functional.normalize(aims, dim=1))

    def bind_lists(self, rows: slice, clean: Tensor) -> Wish:
        return MarkedList(True, 1, self.targets(rows).to(torch.int64).to(clean.device))
