"""NES: natural evolution strategies (Ilyas et al. 2018)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.attacks.optimisers.estimated import Estimated


@dataclass(frozen=True)
class Nes(Estimated):
    """Directions are Gaussian: the estimate is the gradient of the loss smoothed by noise of size sigma."""

    name = "nes"
    how = "gradients estimated from Gaussian noise, with a query budget"

    def direction(self, shape: torch.Size, source: torch.Generator) -> Tensor:
        return torch.randn(shape, generator=source)
