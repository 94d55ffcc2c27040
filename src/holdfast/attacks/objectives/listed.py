"""Wishes read off the list of nearest candidates alone, as a search service shows it.

A place i of k in the list is worth 1 − (i − 1)/k, a candidate that is not shown nothing. The loss is
the worth of the places that the attacker wants emptied, or minus that of those he wants filled: it
changes in steps, but its mean over noisy copies of an image is smooth, and that is what NES and SPSA
descend (as in the partial-information attack of Ilyas et al. 2018).
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from holdfast.attacks.objectives.base import Assessment, Wish


@dataclass(frozen=True, eq=False)
class ListWish(Wish):
    """To fill (`raising`) or to empty the first places of a list of certain candidates."""

    least: ClassVar[float] = -torch.inf

    raising: bool
    k: int

    @abstractmethod
    def marks(self, listed: Tensor) -> Tensor:
        """Which places of each list hold a candidate that matters."""

    def assess(self, seen: Tensor) -> Assessment:
        marks = self.marks(seen) & (seen >= 0)
        k = seen.shape[1]
        worth = 1 - torch.arange(k, device=seen.device) / k
        filled = (marks * worth).sum(1)
        first = marks[:, : self.k]
        success = first.any(1) if self.raising else ~first.any(1)
        loss = -filled if self.raising else filled
        return Assessment(loss, loss, success)


@dataclass(frozen=True, eq=False)
class MarkedList(ListWish):
    """About chosen candidates (`marked`, B×M numbers)."""

    marked: Tensor

    def marks(self, listed: Tensor) -> Tensor:
        return (listed[:, :, None] == self.marked[:, None]).any(2)


@dataclass(frozen=True, eq=False)
class MatchingList(ListWish):
    """About the candidates of the image's own class, but not the image itself."""

    labels: Tensor
    own: Tensor
    classes: tuple[Tensor]
    """The candidates' labels; in a tuple, because images share them."""

    def marks(self, listed: Tensor) -> Tensor:
        shown = self.classes[0][listed.clamp(min=0)]
        return (shown == self.labels[:, None]) & (listed != self.own[:, None])
