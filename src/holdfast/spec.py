"""What an embedder takes: the shape of an image and how a photograph is brought to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from holdfast.errors import ConfigError

Fit = Literal["crop", "squash"]


@dataclass(frozen=True)
class ImageSpec:
    """Images of `channels` × `height` × `width`, pixel values in [0, 1].

    `fit` says how an image of another shape is brought there: `crop` scales the shorter relative
    side and cuts the middle out (the aspect is kept), `squash` scales both sides.
    """

    channels: int
    height: int
    width: int
    fit: Fit = "crop"

    def __post_init__(self) -> None:
        if self.channels not in (1, 3):
            raise ConfigError(f"images have 1 (grey) or 3 (colour) channels, not {self.channels}")
        if min(self.height, self.width) < 1 or max(self.height, self.width) > 4096:
            raise ConfigError(f"an image side is between 1 and 4096, not {self.height}x{self.width}")
        if self.fit not in ("crop", "squash"):
            raise ConfigError(f"fit is 'crop' or 'squash', not '{self.fit}'")

    @property
    def shape(self) -> tuple[int, int, int]:
        return (self.channels, self.height, self.width)

    def __str__(self) -> str:
        return f"{self.channels}x{self.height}x{self.width}"
