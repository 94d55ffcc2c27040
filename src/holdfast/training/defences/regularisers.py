"""Regularisers for the first part of training on bounds (Shi, Wang, Zhang, Yi, Hsieh 2021, Section 4.3)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from holdfast.bounds import Box

TOLERANCE = 0.5
"""τ: a ratio above it costs nothing."""
_LEAST = 1e-12


def tightness(images: Box, before: Sequence[Box]) -> Tensor:
    """Mean over layers of relu(τ − E(δ₀)/E(δᵢ))/τ: boxes should not grow on their way through the network.

    δ₀ is the radius at the images, δᵢ that before activation i.
    """
    first = images.radius.mean()
    return torch.stack([_short(first / box.radius.mean().clamp(min=_LEAST)) for box in before]).mean()


def balance(before: Sequence[Box]) -> Tensor:
    """Mean over layers of relu(τ − α)/τ + relu(τ − β)/τ: neither surely active nor surely inactive neurons prevail.

    α compares the sums of the centres of surely active neurons and of surely inactive ones before activation i, β
    their squared distances to the mean centre: the smaller of the two over the larger.
    """
    terms = []
    for box in before:
        active, inactive = box.lower > 0, box.upper < 0
        apart = (box.centre - box.centre.mean()).square()
        alpha = _ratio((box.centre * active).sum(), -(box.centre * inactive).sum())
        beta = _ratio((apart * active).sum(), (apart * inactive).sum())
        terms.append(_short(alpha) + _short(beta))
    return torch.stack(terms).mean()


def _ratio(one: Tensor, other: Tensor) -> Tensor:
    """The smaller over the larger; 0 where there is neither."""
    return torch.minimum(one, other) / torch.maximum(one, other).clamp(min=_LEAST)


def _short(ratio: Tensor) -> Tensor:
    return torch.relu(TOLERANCE - ratio) / TOLERANCE
