"""SPSA: simultaneous perturbation (Spall 1992; Uesato et al. 2018)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.attacks.optimisers.estimated import Estimated


@dataclass(frozen=True)
class Spsa(Estimated):
    """Directions are signs, −1 or 1 for each pixel: every copy is moved by sigma in every pixel."""

    name = "spsa"
    how = "gradients estimated from random signs, with a query budget"

    def direction(self, shape: torch.Size, source: torch.Generator) -> Tensor:
        return torch.randint(0, 2, shape, generator=source) * 2.0 - 1.0
