"""What an embedder takes: the shape of an image and how a photograph is brought to it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from holdfast.errors import ConfigError

Fit = Literal["crop", "squash"]
Resample = Literal["bilinear", "bicubic"]
PictureOf = Literal["file", "network input"]
"""What a claim about an altered picture speaks of: the file as it is decoded, or what the network is given."""


CLAIM: dict[PictureOf, str] = {
    "file": "Sizes are of the file's own pixels, as decoded.",
    "network input": "Sizes are of the picture as the network sees it, not of the file.",
}
"""The sentence that stands beside every claim about altered pixels."""


def picture_of(resample: Resample) -> PictureOf:
    """What a claim about pixels speaks of where this filter brought the pictures to their size."""
    return "network input" if resample == "bicubic" else "file"


@dataclass(frozen=True)
class ImageSpec:
    """Images of `channels` × `height` × `width`, pixel values in [0, 1].

    `fit` says how an image of another shape is brought there: `crop` scales the shorter relative
    side and cuts the middle out (the aspect is kept), `squash` scales both sides. `resample` is the filter:
    `bilinear` (a triangle, widened when a picture shrinks) has weights that are not negative and sum to one, and its
    results are not rounded to 8 bits, so that no pixel moves farther than the file's pixels did. `bicubic` is the
    filter of before; a claim then holds for the network's input only.

    `resize` is what other libraries do first: bring the shorter side to so many pixels, or the picture to (height,
    width), in whole pixels; then the middle is cut out. It takes the place of `fit`.
    """

    channels: int
    height: int
    width: int
    fit: Fit = "crop"
    resample: Resample = "bilinear"
    resize: int | tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.channels not in (1, 3):
            raise ConfigError(f"images have 1 (grey) or 3 (colour) channels, not {self.channels}")
        if min(self.height, self.width) < 1 or max(self.height, self.width) > 4096:
            raise ConfigError(f"an image side is between 1 and 4096, not {self.height}x{self.width}")
        if self.fit not in ("crop", "squash"):
            raise ConfigError(f"fit is 'crop' or 'squash', not '{self.fit}'")
        if self.resample not in ("bilinear", "bicubic"):
            raise ConfigError(f"resample is 'bilinear' or 'bicubic', not '{self.resample}'")
        if self.resize is not None:
            sides = (self.resize, self.resize) if isinstance(self.resize, int) else tuple(self.resize)
            if len(sides) != 2 or sides[0] < self.height or sides[1] < self.width or max(sides) > 4096:
                raise ConfigError(
                    f"a picture is resized to at least the {self.height}x{self.width} that are cut out of it, "
                    f"not to {self.resize}"
                )
            if not isinstance(self.resize, int):
                # JSON has lists for tuples.
                object.__setattr__(self, "resize", sides)

    def describe(self) -> dict[str, Any]:
        """The fields, ready for JSON; `resize` only where there is one, as in files of before."""
        found = asdict(self)
        return {name: value for name, value in found.items() if name != "resize" or value is not None}

    @property
    def is_of_before(self) -> bool:
        """Whether pictures are brought to their size as earlier versions did."""
        return self.resample == "bicubic" and self.resize is None

    @property
    def before(self) -> dict[str, Any]:
        """The fields as they were written before the filter was among them."""
        return {"channels": self.channels, "height": self.height, "width": self.width, "fit": self.fit}

    @property
    def picture(self) -> PictureOf:
        """What a claim about pixels speaks of."""
        return picture_of(self.resample)

    @property
    def shape(self) -> tuple[int, int, int]:
        return (self.channels, self.height, self.width)

    def __str__(self) -> str:
        return f"{self.channels}x{self.height}x{self.width}"


def square(side: int | None, channels: int = 3) -> ImageSpec | None:
    """Square images of that side; None where the side is left to the model."""
    return None if side is None else ImageSpec(channels, side, side)
