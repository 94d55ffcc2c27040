"""Every way an image file stores its pixels, brought to plain 8-bit grey or colour."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from holdfast.errors import ImageError

_NUMBERS = ("I", "I;16", "I;16L", "I;16B", "I;16N", "F")
_GREY = ("1", "L", "LA", "La")


def flatten(image: Image.Image, channels: int | None) -> Image.Image:
    """`image` in mode L (1 channel) or RGB (3); `None` keeps grey grey and makes the rest colour.

    What is transparent shows white. Numbers wider than 8 bits are scaled, never cut off.
    """
    if image.mode in _NUMBERS:
        image = Image.fromarray(_scaled(np.asarray(image)))
    grey = image.mode in _GREY
    if image.has_transparency_data:
        image = _on_white(image)
    elif image.mode not in ("1", "L", "RGB"):
        image = _convert(image, "RGB")
    wanted = "L" if channels == 1 or (channels is None and grey) else "RGB"
    return image if image.mode == wanted else image.convert(wanted)


def _convert(image: Image.Image, mode: str) -> Image.Image:
    try:
        return image.convert(mode)
    except ValueError as cause:
        raise ImageError(f"unsupported colour mode {image.mode}") from cause


def _on_white(image: Image.Image) -> Image.Image:
    colour = _convert(image, "RGBA")
    white = Image.new("RGBA", colour.size, (255, 255, 255, 255))
    return Image.alpha_composite(white, colour).convert("RGB")


def _scaled(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Numbers as grey: 16 bits by their full range, fractions from [0, 1], others from least to greatest."""
    if values.dtype.kind == "f":
        if not np.isfinite(values).all():
            raise ImageError("holds pixels that are not finite numbers")
        low, high = 0.0, 1.0
    else:
        low, high = 0.0, 65535.0
    least, greatest = float(values.min()), float(values.max())
    if least < low or greatest > high:
        low, high = least, greatest
    if low == high:
        return np.zeros(values.shape, dtype=np.uint8)
    # float64 holds every 32-bit integer exactly.
    return np.rint((values.astype(np.float64) - low) * (255.0 / (high - low))).astype(np.uint8)
