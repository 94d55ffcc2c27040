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

    def describe(self) -> dict[str, list[float]]:
        """Both, ready for JSON."""
        return {"mean": list(self.mean), "std": list(self.std)}


_IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def pixels_for(spec: ImageSpec, mean: PerChannel | None, std: PerChannel | None) -> Pixels | None:
    """One mean and std per channel of `spec`; None where neither is given."""
    if mean is None and std is None:
        return None
    found = Pixels(
        _per_channel("mean", 0.0 if mean is None else mean, spec),
        _per_channel("std", 1.0 if std is None else std, spec),
    )
    _check_order(found)
    return found


def _check_order(pixels: Pixels) -> None:
    """Refuse what is surely a slip: mean and std of pixels up to 255, swapped, or blue before red."""
    mean, std = _IMAGENET
    if max(map(abs, pixels.mean)) > 2 and max(pixels.std) > 2:
        raise ModelError(
            f"mean {pixels.mean} and std {pixels.std} are for pixels from 0 to 255; divide both by 255"
        )
    if _near(pixels.mean, std) and _near(pixels.std, mean):
        raise ModelError("mean and std are those of ImageNet, but swapped; give them the other way round")
    if _near(pixels.mean, mean[::-1]) and _near(pixels.std, std[::-1]):
        raise ModelError(
            "mean and std are those of ImageNet for blue, green, red; pictures come as red, green, blue"
        )


def _near(found: tuple[float, ...], known: tuple[float, ...]) -> bool:
    return len(found) == len(known) and all(abs(a - b) < 2e-3 for a, b in zip(found, known, strict=True))


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
