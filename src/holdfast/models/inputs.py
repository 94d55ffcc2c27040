"""The public border of an embedder: what counts as images, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from holdfast.errors import ModelError
from holdfast.spec import ImageSpec


@runtime_checkable
class ImageSource(Protocol):
    """Images that are read in batches: `batch(indices)` is uint8, N×C×H×W."""

    def __len__(self) -> int: ...

    def batch(self, indices: Sequence[int]) -> Tensor: ...


Images = Tensor | NDArray[Any] | ImageSource
Read = Callable[[int, int], Tensor]
Shape = tuple[int, int, int]
"""Channels, height and width of an image."""


def as_spec(spec: ImageSpec | Shape) -> ImageSpec:
    """`spec` itself, or the spec of (channels, height, width)."""
    if isinstance(spec, ImageSpec):
        return spec
    if len(spec) != 3:
        raise ModelError(f"an image's shape is (channels, height, width), not {tuple(spec)}")
    return ImageSpec(*spec)


def reader(images: Images, wanted: Shape) -> tuple[int, Read]:
    """How many images there are, and `read(start, stop)`: that part as checked floats in [0, 1]."""
    if isinstance(images, Tensor):
        check_shape(tuple(images.shape), wanted)
        return len(images), lambda start, stop: to_unit(images[start:stop], start)
    if isinstance(images, np.ndarray):
        check_shape(images.shape, wanted)
        if images.dtype != np.uint8 and images.dtype.kind != "f":
            raise _wrong_type(str(images.dtype))
        # A copy, because torch warns of read-only memory, which memory-mapped files are.
        return len(images), lambda start, stop: to_unit(torch.from_numpy(np.array(images[start:stop])), start)
    if isinstance(images, ImageSource):
        source = images

        def read(start: int, stop: int) -> Tensor:
            batch = source.batch(range(start, stop))
            check_shape(tuple(batch.shape), wanted)
            return to_unit(batch, start)

        return len(source), read
    raise ModelError(
        f"images are a tensor, an array or an image set, not {type(images).__name__}; "
        f"stack single images into one array of N x {by_sides(wanted)}"
    )


def to_unit(images: Tensor, first: int = 0) -> Tensor:
    """Floats in [0, 1]: uint8 is divided by 255, floats are checked. `first` numbers images in errors."""
    if images.dtype == torch.uint8:
        return images.to(torch.float32) / 255
    if not images.is_floating_point():
        raise _wrong_type(str(images.dtype).removeprefix("torch."))
    if images.numel():
        low, high = (float(value) for value in images.aminmax())
        # Written so that NaN, for which every comparison is false, is refused too.
        if not (low >= 0 and high <= 1):
            raise _outside(images, first)
    return images


def _outside(images: Tensor, first: int) -> ModelError:
    good = ((images >= 0) & (images <= 1)).flatten(1).all(1)
    where = int(good.to(torch.uint8).argmin())
    image = images[where]
    if bool(image.isnan().any()):
        return ModelError(f"image {first + where} holds NaN; pixel values are in [0, 1]")
    found = f"{float(image.min()):g} to {float(image.max()):g}"
    return ModelError(
        f"image {first + where} has pixel values from {found}, not in [0, 1]; "
        "give 8-bit pixels as uint8, and no normalised pixels: the embedder normalises"
    )


def _wrong_type(found: str) -> ModelError:
    return ModelError(f"pixels are uint8 (0 to 255) or floats in [0, 1], not {found}")


def by_sides(shape: Sequence[int]) -> str:
    """A shape for people."""
    return "x".join(str(side) for side in shape)


def check_shape(shape: tuple[int, ...], wanted: Shape) -> None:
    """Refuse a batch of another shape than the embedder takes."""
    if len(shape) == 4 and shape[1:] == wanted:
        return
    found, taken = by_sides(shape), by_sides(wanted)
    if shape == wanted:
        raise ModelError(f"one image of {found} was given without a batch axis; give images[None]")
    if len(shape) != 4:
        raise ModelError(f"images are N x {taken}, found an array of {found or 'no axes'}")
    found, channels = by_sides(shape[1:]), wanted[0]
    colour = {1: "grey", 3: "colour"}
    why = ""
    if shape[1] != channels and shape[1] in colour:
        why = f" ({colour[shape[1]]} images for an embedder of {colour[channels]} ones)"
    elif shape[3] == channels and shape[1] not in colour:
        why = " (channels come first: N x C x H x W)"
    raise ModelError(f"this embedder takes images of {taken}, found {found}{why}; read the images as {taken}")
