"""CA-TRIDE: a collapse-aware adversary that perturbs candidates and anchors in turn (Tian et al., §3)."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from holdfast.training.adversary import (
    Found,
    Triple,
    apart,
    collapseness,
    hardness,
    nearer_half,
)
from holdfast.training.defences.adversarial import Adversarial, AdversarialOptions
from holdfast.training.defences.base import Moment
from holdfast.training.losses import entanglement

_FIT = 0.77
_MOST = 50.0


class CaTrideOptions(AdversarialOptions):
    """The defaults are the paper's for CUB; the switches are those of its ablations (Tables 3 and 4, §4.3)."""

    name: Literal["ca-tride"] = "ca-tride"
    progressive: bool = True
    narrowing: bool = True
    stages: Literal["both", "cap", "anp"] = "both"
    attention: Annotated[float, Field(ge=0)] | Literal["auto"] = 10.0
    """λ: how much the near pairs count in C; `auto` follows how entangled the classes are."""
    measure: Literal["collapseness", "hardness"] = "collapseness"
    aware: bool = True
    """Off, the adversary raises H without end: the naive forms, which collapse."""
    top_rank_term: bool = True
    top_rank_triplet: bool = True
    tr_weight: Literal["equation", "prose"] = "equation"
    """Eq. 12's factor e^max(C, 0), or what the text says of it, e^−max(−C, 0): it comes in as C nears 0."""
    gamma: float = Field(default=0.5, ge=0)
    beta_tr: float = Field(default=0.04, ge=0)


class CaTride(Adversarial):
    """CAP and ANP take turns, batch by batch, CAP first; each stops where its loss vanishes."""

    Options = CaTrideOptions
    options: CaTrideOptions
    _seen: Tensor
    _shifts: Tensor

    def __init__(self, options: CaTrideOptions, classes: int) -> None:
        super().__init__()
        self.options = options
        # Running means of the distances within and between classes; saved, so that a resumed run is the same.
        self.register_buffer("_seen", torch.zeros(3, dtype=torch.float64))
        self.register_buffer("_shifts", torch.full((2,), torch.nan))

    @property
    def moving(self) -> float:
        return {"both": 1.5, "cap": 2.0, "anp": 1.0}[self.options.stages]

    def attend(self, known: Tensor, labels: Tensor) -> float:
        """λ, for `auto` 0.77·e / ((1 − e)·d_inter) with the entanglement e = d_intra / d_inter.

        Free of the embedding's scale; at the distances of the paper's Table 5 it gives 10.1 (CUB; by hand
        10), 8.9 (CARS; 9.5) and 2.3 (SOP; 2).
        """
        wanted = self.options.attention
        if wanted != "auto":
            return wanted
        within, between = entanglement(known, labels)
        keep = 0.98
        self._seen.mul_(keep).add_((1 - keep) * torch.tensor([within, between, 1.0], dtype=torch.float64))
        within, between, weight = self._seen.tolist()
        return attention_for(within / weight, between / weight)

    def stage(self, at: Moment) -> Literal["cap", "anp"]:
        """Which of the two this batch is for."""
        if self.options.stages == "both":
            return "anp" if at.step % 2 else "cap"
        return self.options.stages

    def shifts(self, shift: Tensor, at: Moment) -> dict[str, float]:
        """The last shift of each stage, and their mean: every logged step is of the same stage."""
        self._shifts[int(self.stage(at) == "anp")] = shift
        known = {name: s for name, s in zip(("cap", "anp"), self._shifts.tolist(), strict=True) if s == s}
        return {f"shift_{name}": s for name, s in known.items()} | {"shift": sum(known.values()) / len(known)}

    def attack(self, embedder: nn.Module, images: Triple, clean: Triple | None, at: Moment) -> Found:
        assert clean is not None, "this adversary looks at the clean embeddings"
        if self.stage(at) == "cap":
            return self.search(embedder, images, clean, "pn", self._cap, at)
        return self.search(embedder, images, clean, "a", lambda z: self._anp(z, clean.a), at)

    def loss(self, found: Found, embeddings: Triple, clean: Triple, at: Moment) -> Tensor:
        """Eq. 14. The top-rank triplet (Eq. 13) is hinged on the means of the nearer halves.

        It is for anchors that were moved: not in warm-up, nor where the adversary stopped before its first step.
        """
        loss, o = super().loss(found, embeddings, clean, at), self.options
        if self.stage(at) == "cap" or not o.top_rank_triplet or not found.gradients:
            return loss
        gap = nearer_half(apart(embeddings.a, embeddings.p)) - nearer_half(apart(embeddings.a, embeddings.n))
        return loss + o.gamma * torch.relu(gap + o.beta_tr)

    def _cap(self, triple: Triple) -> Tensor:
        """Eq. 10."""
        if not self.options.aware:
            return -hardness(triple).mean()
        return torch.relu(-self._measured(triple))

    def _anp(self, triple: Triple, first: Tensor) -> Tensor:
        """Eq. 11 and 12; `first` are the anchors as they were."""
        if not self.options.aware:
            return -hardness(triple).mean()
        state = self._measured(triple)
        if not self.options.top_rank_term:
            return torch.relu(-state)
        push = nearer_half(apart(triple.a, triple.n)) - apart(triple.a, first).mean()
        if self.options.tr_weight == "equation":
            weight = torch.exp(torch.relu(state))
        else:
            weight = torch.exp(-torch.relu(-state))
        return torch.relu(weight * push - state)

    def _measured(self, triple: Triple) -> Tensor:
        if self.options.measure == "hardness":
            return hardness(triple).mean()
        return collapseness(triple, self.attention)


def attention_for(within: float, between: float) -> float:
    """The λ of `auto` for mean distances within and between classes."""
    gap = between - within
    if not (gap > 0 and between > 0 and math.isfinite(within)):
        return _MOST
    return min(_FIT * within / (between * gap), _MOST)
