"""Pixels as files."""

from __future__ import annotations

import io

import numpy as np
from numpy.typing import NDArray

from holdfast.data.fit import to_image


def png(pixels: NDArray[np.uint8]) -> bytes:
    """The picture as a PNG file: the same pixels when it is read again."""
    return _encoded(pixels, "PNG")


def jpeg(pixels: NDArray[np.uint8], quality: int) -> bytes:
    """The picture as a JPEG file."""
    return _encoded(pixels, "JPEG", quality=quality)


def _encoded(pixels: NDArray[np.uint8], kind: str, **options: int) -> bytes:
    buffer = io.BytesIO()
    to_image(pixels).save(buffer, kind, **options)
    return buffer.getvalue()
