"""Boxes of candidates: what the embedder can output when a candidate's image is altered, as columns.

A gallery has boxes for some sizes eps of the threat linf:eps, and then for every candidate: three
columns for each eps, written together with the vector. `centre` and `radius` are the box; `reach` is
the largest distance from the stored vector to a point of it, which is what a search prunes by.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from holdfast.bounds.box import TINY
from holdfast.errors import GalleryError
from holdfast.gallery.exact import Doubles, Floats

CENTRE, RADIUS, REACH = "centre", "radius", "reach"

_SLACK = 1 + 2.0**-40


@dataclass(frozen=True)
class Boxes:
    """All points within `radius` of `centre`, coordinate by coordinate, a row for each candidate; float32.

    A radius may be infinite: nothing is known of that coordinate.
    """

    centre: Floats
    radius: Floats

    def __post_init__(self) -> None:
        if self.centre.shape != self.radius.shape or self.centre.ndim != 2:
            raise GalleryError(
                f"boxes have a centre and a radius of one shape, not {self.centre.shape} and {self.radius.shape}"
            )
        if not (np.isfinite(self.centre).all() and (self.radius >= 0).all()):
            raise GalleryError("a box has a finite centre and a radius of 0 or more in every coordinate")

    @classmethod
    def around(cls, centre: Doubles, radius: Doubles) -> Boxes:
        """The float32 boxes that hold these float64 ones: the radius takes up the rounding of both, near zero too."""
        with np.errstate(over="ignore", invalid="ignore"):
            near = centre.astype(np.float32)
            grown = radius + np.abs(centre - near) + TINY
            wide = np.nextafter(grown.astype(np.float32), np.float32(np.inf))
        lost = ~(np.isfinite(near) & np.isfinite(wide))
        return cls(np.where(lost, np.float32(0), near), np.where(lost, np.float32(np.inf), wide))

    def __len__(self) -> int:
        return len(self.centre)

    def hold(self, vectors: Floats) -> bool:
        """Whether each box holds its vector."""
        return bool((np.abs(vectors.astype(np.float64) - self.centre) <= self.radius).all())

    def reach(self, vectors: Floats) -> Floats:
        """At least the distance from each vector to the farthest point of its box, as a column."""
        gap = np.abs(vectors.astype(np.float64) - self.centre) + self.radius
        far = np.sqrt(np.square(gap).sum(axis=1, keepdims=True)) * _SLACK
        with np.errstate(over="ignore"):
            return np.asarray(np.nextafter(far.astype(np.float32), np.float32(np.inf)))


def kind(part: str, eps: float) -> str:
    """The name of a column of boxes."""
    return f"{part} linf:{eps!r}"


def part_of(kind: str) -> tuple[str, float]:
    """Of which part of boxes, and for which eps, a column is."""
    part, _, eps = kind.partition(" linf:")
    return part, float(eps)


def rows(boxes: Mapping[float, Boxes], vectors: Floats) -> dict[str, Floats]:
    """What to write into the columns of boxes for candidates with these vectors."""
    found: dict[str, Floats] = {}
    for eps, one in boxes.items():
        if one.centre.shape != vectors.shape:
            raise GalleryError(
                f"vectors of shape {vectors.shape} came with boxes of shape {one.centre.shape}; give one for each"
            )
        if not one.hold(vectors):
            raise GalleryError(f"a box for {named(eps)} does not hold the vector it belongs to")
        found[kind(CENTRE, eps)] = one.centre
        found[kind(RADIUS, eps)] = one.radius
        found[kind(REACH, eps)] = one.reach(vectors)
    return found


def named(*eps: float) -> str:
    """How boxes are called in messages."""
    return ", ".join(f"linf:{size:g}" for size in eps)
