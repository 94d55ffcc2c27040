"""From a change of a file's pixels to a change of the network's input, which is what proofs are about.

A bilinear picture is a linear map of the file's pixels, computed to 2⁻²³ a pixel (`data.fit`). Two pictures may err in
opposite directions, so a change of the file within eps is one within eps + 2⁻²² at the network; twice that is charged,
and 2⁻²⁶ of eps for weights whose float64 sum is not quite one. In ℓ2 a change grows by at most `stretch`
(`data.resample`), and the errors of d pixels together by √d · 2⁻²¹.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from holdfast.spec import ImageSpec, PictureOf

_PIXEL = 2.0**-21
_SHARE = 1 + 2.0**-26

Size = TypeVar("Size", float, Tensor, float | Tensor)


def at_network(eps: Size, spec: ImageSpec) -> Size:
    """The ℓ∞ eps at the network's input that covers every file altered by at most `eps`; 0 stays 0.

    Of bicubic pictures nothing is known: the eps is that of the network's input, as it is. No two images in [0, 1]
    are farther apart than 1.
    """
    if spec.picture == "network input":
        return eps
    if isinstance(eps, Tensor):
        return torch.where(eps > 0, (eps * _SHARE + _PIXEL).clamp(max=1), eps)
    return min(1.0, eps * _SHARE + _PIXEL) if eps > 0 else eps


@dataclass(frozen=True)
class Way:
    """From the pixels of a file to those of a network in ℓ2. Without a stretch nothing is known of the file."""

    spec: ImageSpec
    stretch: float | None = None

    @property
    def picture(self) -> PictureOf:
        """What radii are of."""
        return "network input" if self.stretch is None else "file"

    def at_network(self, radius: float) -> float:
        """The radius at the network's input that covers every file altered by at most `radius`."""
        return radius if self.stretch is None else (radius * self.stretch + self._errors) * _SHARE

    def of_file(self, radius: float) -> float:
        """The radius of the file that a radius at the network's input covers; 0 where that is none."""
        if self.stretch is None:
            return radius
        return max(0.0, (radius / _SHARE - self._errors) / (self.stretch * _SHARE))

    def pixel(self, radius: float) -> float:
        """The same for every pixel by itself (ℓ∞), which no stretch enlarges."""
        each = radius / math.sqrt(math.prod(self.spec.shape))
        return each if self.stretch is None else max(0.0, (each - _PIXEL) / _SHARE)

    @property
    def _errors(self) -> float:
        return math.sqrt(math.prod(self.spec.shape)) * _PIXEL
