"""Augmentation of a whole batch at once: crops and flips of the uint8 pixels, then noise on the floats."""

from __future__ import annotations

import torch
from torch import Tensor

from holdfast.models import to_unit


def prepared(drawn: Tensor, *, crop: int, flip: bool, noise: float) -> Tensor:
    """Pixels as the network gets them; floats are features of a frozen network, which had all that before.

    Draws from torch's default generator, which the training loop seeds for each step.
    """
    if drawn.is_floating_point():
        return drawn
    images = to_unit(augment(drawn, crop=crop, flip=flip))
    return images + noise * torch.randn_like(images) if noise > 0 else images


def augment(images: Tensor, *, crop: int, flip: bool) -> Tensor:
    """Pad by `crop` pixels (edges repeated) and cut out at random; mirror half of the images."""
    n, _, height, width = images.shape
    if crop > 0:
        # Edge padding is not there for uint8 in torch; indices clamped to the image are the same thing.
        top = torch.randint(-crop, crop + 1, (n, 1))
        left = torch.randint(-crop, crop + 1, (n, 1))
        rows = (torch.arange(height) + top).clamp_(0, height - 1)
        columns = (torch.arange(width) + left).clamp_(0, width - 1)
        image = torch.arange(n)[:, None, None]
        images = images.permute(0, 2, 3, 1)[image, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
    if flip:
        mirrored = torch.rand(n) < 0.5
        images = torch.where(mirrored[:, None, None, None], images.flip(3), images)
    return images.contiguous()
