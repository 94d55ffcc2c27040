"""Bringing images to an ImageSpec: one at a time, or a whole array of equal ones."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from holdfast.data.resample import Weights, triangle
from holdfast.spec import ImageSpec

# The weights Pillow uses for luma, in 1/65536, so that arrays and files turn grey alike.
_LUMA = (19595, 38470, 7471)
_BLOCK = 4096

Pixels = NDArray[Any]
"""C×H×W: 8 bits, or floats in [0, 1]."""


def fit_box(width: int, height: int, spec: ImageSpec) -> tuple[float, float, float, float]:
    """The part of a `width` × `height` image that `spec` keeps: all of it, or the middle with its aspect."""
    if spec.resize is not None:
        return _cut_after_resizing(width, height, spec, spec.resize)
    if spec.fit == "squash":
        return (0.0, 0.0, float(width), float(height))
    scale = max(spec.width / width, spec.height / height)
    kept_width = min(spec.width / scale, float(width))
    kept_height = min(spec.height / scale, float(height))
    left, top = (width - kept_width) / 2, (height - kept_height) / 2
    return (left, top, min(left + kept_width, width), min(top + kept_height, height))


def _cut_after_resizing(
    width: int, height: int, spec: ImageSpec, to: int | tuple[int, int]
) -> tuple[float, float, float, float]:
    """Where the middle of the resized picture lies in the picture itself: filters see beyond the part they resize.

    Resizing to whole pixels and cutting out whole pixels is thus one step, with the same weights.
    """
    if isinstance(to, int):
        short, long = sorted((width, height))
        longer = int(to * long / short)
        to = (longer, to) if width <= height else (to, longer)
    rows, columns = to
    top, left = (rows - spec.height) // 2, (columns - spec.width) // 2
    y, x = height / rows, width / columns
    right, bottom = min((left + spec.width) * x, float(width)), min((top + spec.height) * y, float(height))
    return (left * x, top * y, right, bottom)


def draft_size(width: int, height: int, spec: ImageSpec) -> tuple[int, int]:
    """The least size a decoder may shrink to by itself: twice what `spec` needs, whichever way up."""
    long, short = max(spec.width, spec.height), min(width, height)
    scale = min(1.0, 2.0 * long / short)
    return (math.ceil(width * scale), math.ceil(height * scale))


def fit_image(image: Image.Image, spec: ImageSpec) -> Pixels:
    """`image` (L or RGB) as `spec` wants it, resampled with antialiasing in one step.

    Bicubic gives 8 bits. Bilinear gives floats that are not rounded to 8 bits, made from the picture in its own
    channels: each is a mean of the picture's pixels, right to 2⁻²³ (Pillow sums in float64 and keeps float32).
    """
    size = (spec.width, spec.height)
    box = fit_box(image.width, image.height, spec)
    if spec.resample == "bicubic":
        image = image.convert("L" if spec.channels == 1 else "RGB")
        whole = image.size == size and box == (0, 0, *size)
        return to_array(image if whole else image.resize(size, Image.Resampling.BICUBIC, box=box))
    planes = _planes(image, spec.channels)
    if image.size != size or box != (0, 0, *size):
        planes = (plane.resize(size, Image.Resampling.BILINEAR, box=box) for plane in planes)
    found = np.stack([np.asarray(plane, dtype=np.float32) for plane in planes])
    found = np.clip(found / np.float32(255), 0, 1)
    return found if len(found) == spec.channels else np.repeat(found, spec.channels, axis=0)


def _planes(image: Image.Image, channels: int) -> Iterator[Image.Image]:
    """The picture's channels as floats in [0, 255], one at a time; its luma if one is wanted. Nothing is rounded."""
    if image.mode == "L" or channels == 3:
        return (plane.convert("F") for plane in image.split())
    colour, luma = np.asarray(image), np.zeros((image.height, image.width), dtype=np.float32)
    for index, weight in enumerate(_LUMA):
        # Whole numbers below 2^24: exact.
        luma += np.float32(weight) * colour[..., index]
    return iter([Image.fromarray(luma * np.float32(2**-16))])


def weights(width: int, height: int, spec: ImageSpec) -> tuple[Weights, Weights]:
    """The bilinear weights for the rows and the columns of a `width` × `height` picture."""
    left, top, right, bottom = fit_box(width, height, spec)
    return triangle(height, spec.height, top, bottom), triangle(width, spec.width, left, right)


def luma_weights() -> tuple[float, ...]:
    """The share of red, green and blue in grey."""
    return tuple(weight / 65536 for weight in _LUMA)


def stretch(width: int, height: int, channels: int, spec: ImageSpec) -> float | None:
    """By how much a change of a picture of this size can grow in ℓ2 on its way to `spec`; None if that is not known.

    Grey that is repeated counts three times. Luma is shorter than the change of a colour: √Σw² is below 1.
    """
    if spec.resample == "bicubic":
        return None
    rows, columns = weights(width, height, spec)
    colours = math.sqrt(3) if (channels, spec.channels) == (1, 3) else 1.0
    if (channels, spec.channels) == (3, 1):
        colours = math.hypot(*luma_weights())
    return rows.stretch * columns.stretch * colours


def to_8bit(pixels: Pixels) -> NDArray[np.uint8]:
    """Pixels rounded to 8 bits; those that have 8 bits as they are."""
    found: NDArray[np.uint8] = pixels
    if pixels.dtype != np.uint8:
        found = np.rint(pixels * np.float32(255)).astype(np.uint8)
    return found


def to_array(image: Image.Image) -> NDArray[np.uint8]:
    """An L or RGB image as a new C×H×W array."""
    pixels = np.asarray(image, dtype=np.uint8)
    return pixels[None].copy() if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def to_image(pixels: NDArray[np.uint8]) -> Image.Image:
    """A C×H×W array as an L or RGB image."""
    if pixels.shape[0] == 1:
        return Image.fromarray(pixels[0])
    return Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0)))


def to_channels(pixels: NDArray[np.uint8], channels: int) -> NDArray[np.uint8]:
    """N×C×H×W pixels with that many channels: grey is repeated, colour becomes luma."""
    if pixels.shape[1] == channels:
        return pixels
    if channels == 3:
        return np.repeat(pixels, 3, axis=1)
    red, green, blue = (pixels[:, index].astype(np.uint32) for index in range(3))
    luma = (_LUMA[0] * red + _LUMA[1] * green + _LUMA[2] * blue + 0x8000) >> 16
    return luma.astype(np.uint8)[:, None]


def fit_arrays(pixels: NDArray[np.uint8], spec: ImageSpec, out: NDArray[np.uint8]) -> None:
    """Bring N×C×H×W `pixels` to `spec` into `out`, as `fit_image` would one by one."""
    same_size = pixels.shape[2:] == (spec.height, spec.width) and spec.resize is None
    for start in range(0, len(pixels), _BLOCK):
        block = pixels[start : start + _BLOCK]
        if same_size:
            out[start : start + _BLOCK] = to_channels(block, spec.channels)
            continue
        for index, image in enumerate(block, start):
            out[index] = to_8bit(fit_image(to_image(image), spec))
