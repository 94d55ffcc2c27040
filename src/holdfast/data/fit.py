"""Bringing images to an ImageSpec: one at a time, or a whole array of equal ones."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from holdfast.spec import ImageSpec

# The weights Pillow uses for luma, in 1/65536, so that arrays and files turn grey alike.
_LUMA = (19595, 38470, 7471)
_BLOCK = 4096


def fit_box(width: int, height: int, spec: ImageSpec) -> tuple[float, float, float, float]:
    """The part of a `width` × `height` image that `spec` keeps: all of it, or the middle with its aspect."""
    if spec.fit == "squash":
        return (0.0, 0.0, float(width), float(height))
    scale = max(spec.width / width, spec.height / height)
    kept_width = min(spec.width / scale, float(width))
    kept_height = min(spec.height / scale, float(height))
    left, top = (width - kept_width) / 2, (height - kept_height) / 2
    return (left, top, min(left + kept_width, width), min(top + kept_height, height))


def draft_size(width: int, height: int, spec: ImageSpec) -> tuple[int, int]:
    """The least size a decoder may shrink to by itself: twice what `spec` needs, whichever way up."""
    long, short = max(spec.width, spec.height), min(width, height)
    scale = min(1.0, 2.0 * long / short)
    return (math.ceil(width * scale), math.ceil(height * scale))


def fit_image(image: Image.Image, spec: ImageSpec) -> Image.Image:
    """`image` (L or RGB) at the size of `spec`, resampled with antialiasing in one step."""
    if image.size == (spec.width, spec.height):
        return image
    box = fit_box(image.width, image.height, spec)
    return image.resize((spec.width, spec.height), Image.Resampling.BICUBIC, box=box)


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
    same_size = pixels.shape[2:] == (spec.height, spec.width)
    for start in range(0, len(pixels), _BLOCK):
        block = to_channels(pixels[start : start + _BLOCK], spec.channels)
        if same_size:
            out[start : start + _BLOCK] = block
            continue
        for index, image in enumerate(block, start):
            out[index] = to_array(fit_image(to_image(image), spec))
