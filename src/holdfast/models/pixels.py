"""Pixel normalisation, as a layer inside the embedder."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from holdfast.errors import ModelError
from holdfast.spec import ImageSpec

PerChannel = float | Sequence[float]


@dataclass(frozen=True)
class Pixels:
    """Images x in [0, 1] enter the network as (x − mean) / std, channel by channel."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std):
            raise ModelError(f"pixel mean has {len(self.mean)} values and std {len(self.std)}; give as many")
        if not all(math.isfinite(value) for value in (*self.mean, *self.std)) or min(self.std) <= 0:
            raise ModelError(f"pixel mean is finite and std above 0, not {self.mean} and {self.std}")


def pixels_for(spec: ImageSpec, mean: PerChannel | None, std: PerChannel | None) -> Pixels | None:
    """One mean and std per channel of `spec`; None where neither is given."""
    if mean is None and std is None:
        return None
    return Pixels(
        _per_channel("mean", 0.0 if mean is None else mean, spec),
        _per_channel("std", 1.0 if std is None else std, spec),
    )


def _per_channel(name: str, value: PerChannel, spec: ImageSpec) -> tuple[float, ...]:
    values = (float(value),) if isinstance(value, int | float) else tuple(float(entry) for entry in value)
    if len(values) == 1:
        return values * spec.channels
    if len(values) != spec.channels:
        raise ModelError(f"pixel {name} has {len(values)} values for images with {spec.channels} channels")
    return values


class Normalise(nn.Module):
    """(x − mean) / std. Both are told by the card, so they are no part of the weights."""

    mean: Tensor
    std: Tensor

    def __init__(self, pixels: Pixels) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(pixels.mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(pixels.std).view(-1, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        return (images - self.mean) / self.std
