"""A look at a stranger's model before anything rests on it: the same image must have the same vector, always."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from holdfast.errors import ModelError
from holdfast.models.fingerprint import probes

_MOST = 0.01
"""Share of the longest vector: far above rounding, also in half precision, and far below what dropout does."""


def check_steady(embed: Callable[[Tensor], Tensor], shape: tuple[int, int, int], name: str) -> Tensor:
    """The vectors of three fixed images; an error where they change from call to call, or alone and in a batch."""
    images = probes(shape)
    first = embed(images)
    if not _alike(embed(images), first, first):
        raise ModelError(
            f"{name} gives the same images other vectors the second time; switch its dropout or noise off"
        )
    if not _alike(embed(images[1:2]), first[1:2], first):
        raise ModelError(
            f"{name} gives an image another vector alone than in a batch; use a model that looks at each by itself "
            "(batch norm in eval mode)"
        )
    return first


def _alike(one: Tensor, other: Tensor, scale: Tensor) -> bool:
    longest = float(scale.double().norm(dim=1).max())
    return one.shape == other.shape and float((one.double() - other.double()).abs().max()) <= _MOST * longest
