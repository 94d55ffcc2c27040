"""GTT: greedy top-1 translocation (Zhou et al. 2021)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.attacks.objectives.base import Assessment, Given, Objective, Wish, without_own
from holdfast.attacks.objectives.listed import MarkedList
from holdfast.attacks.objectives.query_rank import RankWish
from holdfast.errors import ConfigError


@dataclass(frozen=True, eq=False)
class TranslocationWish(RankWish):
    """QA− on one candidate, judged by whether it is still in the top k."""

    def assess(self, seen: Tensor) -> Assessment:
        state = super().assess(seen)
        assert state.success is not None
        return state._replace(score=(~state.success).to(state.loss.dtype))


class Translocation(Objective):
    """The candidate that the clean query finds first is pushed out of the top `k`; the query itself is none."""

    name = "gtt"
    wants = "push the query's first result out of the top 4"
    top = 4
    in_ers, draws, measures = True, "first", "kept"

    def __init__(self, given: Given, *, k: int = top) -> None:
        super().__init__(given)
        if k < 1 or (given.candidates is not None and k >= len(given.candidates)):
            raise ConfigError(f"k lies between 1 and the number of candidates - 1, not {k}")
        self.k = k

    def bind(self, rows: slice, clean: Tensor) -> Wish:
        candidates, own = self.candidates.like(clean), self.own(rows, clean)
        distances = candidates.distances(clean)
        present = without_own(torch.ones_like(distances, dtype=torch.bool), own)
        first = distances.masked_fill(~present, torch.inf).argmin(1)
        return TranslocationWish(candidates, False, self.k, first[:, None], own)

    def bind_lists(self, rows: slice, clean: Tensor) -> Wish:
        own = self.own(rows, clean)
        second = clean[:, min(1, clean.shape[1] - 1)]
        first = torch.where(clean[:, 0] == own, second, clean[:, 0])
        return MarkedList(False, self.k, first[:, None])
