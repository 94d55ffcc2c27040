"""Boxes: a centre and a radius for every coordinate, and the box of images an attacker can reach."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.bounds.threads import CHEAP, in_threads
from holdfast.errors import ConfigError, DataError

LARGEST_NORM = 1e18
"""Norms below this have a finite square in float32."""
TINY = 2.0**-120
"""More than float32 operations err near zero, where their error is not a share of the result (see `operations`)."""
PIXEL_ROUNDING = 2.0**-22
"""Covers the rounding of x ± eps for pixels in [0, 1] and of the centre and radius made of them."""


@dataclass(frozen=True)
class Box:
    """All points within `radius` of `centre`, coordinate by coordinate; the first axis is the image."""

    centre: Tensor
    radius: Tensor

    @property
    def lower(self) -> Tensor:
        return self.centre - self.radius

    @property
    def upper(self) -> Tensor:
        return self.centre + self.radius

    def __len__(self) -> int:
        return len(self.centre)

    def to(self, dtype: torch.dtype) -> Box:
        return Box(self.centre.to(dtype), self.radius.to(dtype))

    def take(self, indices: Tensor | slice) -> Box:
        """The boxes of some images."""
        return Box(self.centre[indices], self.radius[indices])


def normalised(box: Box) -> Box:
    """A box that holds z / ‖z‖ for every z in the box; of infinite radius where the box is near zero.

    Coordinate by coordinate: the numerator in its interval, the norm between those of the nearest
    and the farthest point.
    """
    least = torch.relu(box.centre.abs() - box.radius).norm(dim=1, keepdim=True)
    most = (box.centre.abs() + box.radius).norm(dim=1, keepdim=True)
    upper = torch.where(box.upper > 0, box.upper / least, box.upper / most)
    lower = torch.where(box.lower < 0, box.lower / least, box.lower / most)
    upper, lower = upper.clamp(max=1), lower.clamp(min=-1)
    centre, radius = (upper + lower) / 2, (upper - lower) / 2
    # float32 inference: a norm of d squares errs by at most the share (d + 2)·2⁻²⁴, the division by 2⁻²⁴. What
    # underflows, d squares of 2⁻¹²⁶ against a norm above 2⁻³⁹ and a quotient of 2⁻¹²⁶, lies far below 2⁻²⁰.
    slack = 2.0**-20 + box.centre.shape[1] * 2.0**-24
    # Inference divides by no less than 1e-12, and the square of a large number is infinite in float32.
    unsure = ~((least > 2e-12) & (most < LARGEST_NORM)).expand_as(radius)
    radius = torch.where(unsure, torch.inf, radius * (1 + slack) + slack)
    return Box(torch.where(unsure, 0.0, centre), radius)


def image_box(images: Tensor, eps: float | Tensor, *, clip: bool = True, rounding: bool = False) -> Box:
    """Every image within `eps` (ℓ∞) of the given ones, inside [0, 1] if `clip`.

    `eps` is one number, or one for each image. Kakizaki et al. (Eq. 15, 16) do not clip; an image
    outside [0, 1] does not exist, so clipping is sound, and on images with many pixels at 0 or 1 it
    is much tighter. With `rounding` the box also covers the rounding of its own arithmetic.
    """
    if not images.is_floating_point():
        raise DataError(f"images are floats in [0, 1] here, not {images.dtype}; divide bytes by 255")
    reach = torch.as_tensor(eps, dtype=images.dtype)
    if reach.ndim and reach.shape != images.shape[:1]:
        raise DataError(f"{len(reach)} values of eps do not fit {len(images)} images")
    if not bool(((reach >= 0) & (reach <= 1)).all()):
        raise ConfigError(f"eps lies between 0 and 1 (the image domain), not {eps}")
    if not images.numel():
        raise DataError("there are no images to bound")
    least, most = images.aminmax()
    # Written so that NaN, for which every comparison is false, is refused too.
    if not (least >= 0 and most <= 1):
        raise DataError(f"images lie in [0, 1]; found values from {least:.3g} to {most:.3g}")
    more = PIXEL_ROUNDING if rounding else 0.0
    reach = reach.expand(len(images)).contiguous()
    if not clip:
        return Box(images, (reach + more).view(-1, *[1] * (images.ndim - 1)).expand_as(images).clone())
    from holdfast.bounds.kernels import clipped_box

    flat = images.detach().flatten(1).contiguous()
    out = torch.empty_like(flat), torch.empty_like(flat)
    arrays = [flat.numpy(), reach.numpy(), more, *(t.numpy() for t in out)]
    in_threads(lambda a, b: clipped_box(*arrays, a, b), len(flat), flat.numel() // CHEAP)
    centre, radius = (t.view(images.shape) for t in out)
    return Box(centre, radius)
