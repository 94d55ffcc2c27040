"""8-bit images inside a threat, so that what is saved as PNG is still allowed."""

from __future__ import annotations

import torch
from torch import Tensor

from holdfast.attacks.ball import Ball
from holdfast.bounds.box import PIXEL_ROUNDING
from holdfast.errors import ConfigError

_GREY = 255 * PIXEL_ROUNDING
"""A pixel this near to k/255, in grey levels, is k/255: float32 rounds it no better."""


def to_bytes(ball: Ball, images: Tensor) -> Tensor:
    """8-bit images (uint8) that are allowed and as near to `images` as rounding can be.

    In ℓ∞ every pixel goes to the nearest of its allowed levels ⌈255(x − eps)⌉ … ⌊255(x + eps)⌋, which
    is exact. In ℓ2 every pixel goes to its nearest level; where that leaves the ball, the pixels for
    which it costs least go back towards the clean image until it does not. Clean images that are no
    8-bit images may have no allowed 8-bit image near them: that is an error.
    """
    clean = (255 * ball.clean.double()).flatten(1)
    level = clean.round()
    clean = torch.where((clean - level).abs() <= _GREY, level, clean)
    wanted = (255 * images.double()).flatten(1)
    eps = 255 * ball.eps
    if ball.norm == "linf":
        low = (clean - eps - _GREY).ceil().clamp(min=0)
        high = (clean + eps + _GREY).floor().clamp(max=255)
        _refuse((low > high).any(1), ball)
        found = torch.minimum(torch.maximum(wanted.round(), low), high)
    else:
        nearest = wanted.round().clamp(0, 255)
        toward = torch.where(wanted >= clean, wanted.floor(), wanted.ceil())
        passed = torch.where(wanted >= clean, toward < clean, toward > clean)
        toward = torch.where(passed, clean.round(), toward).clamp(0, 255)
        found = _retreat(nearest, toward, clean, wanted, eps)
        found = _retreat(found, clean.round().clamp(0, 255), clean, wanted, eps)
        _refuse((found - clean).norm(dim=1) > eps * (1 + 1e-9) + _GREY, ball)
    return found.to(torch.uint8).view_as(images)


def _retreat(found: Tensor, back: Tensor, clean: Tensor, wanted: Tensor, eps: float) -> Tensor:
    """`found` with as few pixels replaced by those of `back` as bring it into the ball, cheapest first."""
    gain = (found - clean).square() - (back - clean).square()
    cost = (back - wanted).square() - (found - wanted).square()
    excess = (found - clean).square().sum(1, keepdim=True) - eps**2
    price = torch.where(gain > 0, cost / gain.clamp(min=1e-12), torch.inf)
    order = price.argsort(dim=1, stable=True)
    freed = gain.clamp(min=0).gather(1, order).cumsum(1)
    # Those before which the room gained is not yet enough.
    needed = torch.cat([torch.zeros_like(excess), freed[:, :-1]], 1) < excess
    replaced = torch.zeros_like(found, dtype=torch.bool).scatter(1, order, needed) & (gain > 0)
    return torch.where(replaced, back, found)


def _refuse(none: Tensor, ball: Ball) -> None:
    if bool(none.any()):
        raise ConfigError(
            f"no 8-bit image lies within {ball.norm}:{ball.eps:g} of image {int(none.to(torch.uint8).argmax())}, "
            "whose pixels are not 8-bit; raise eps or give 8-bit images"
        )
