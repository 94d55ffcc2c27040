"""Augmentation of a whole batch at once, on the uint8 pixels, before they become floats."""

from __future__ import annotations

import torch
from torch import Tensor


def augment(images: Tensor, *, crop: int, flip: bool) -> Tensor:
    """Pad by `crop` pixels (edges repeated) and cut out at random; mirror half of the images.

    Draws from torch's default generator, which the training loop seeds for each step.
    """
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
