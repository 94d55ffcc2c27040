"""The values a gallery takes and gives: hits, items, and what is known of its embedder."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from holdfast.errors import GalleryError
from holdfast.models.fingerprint import is_current
from holdfast.spec import PictureOf, Resample, picture_of


@dataclass(frozen=True)
class EmbedderInfo:
    """Which embedder made the vectors: two galleries are comparable only if fingerprints are equal.

    `location` is a hint where the embedder was found when the gallery was made, never a promise.
    """

    fingerprint: str
    card: dict[str, Any] = field(default_factory=dict)
    location: str | None = None
    also: tuple[str, ...] = field(default=(), compare=False)
    """Fingerprints by rules of before that stand for the same embedder; not stored."""

    @property
    def current(self) -> bool:
        """Whether its fingerprint is by today's rule; what one of before vouches for proves nothing."""
        return is_current(self.fingerprint)

    @property
    def resample(self) -> Resample:
        """The filter that brought the pictures to the network's size; one that the card does not say was bicubic."""
        found: Resample = self.card.get("spec", {}).get("resample", "bicubic")
        return found

    @property
    def picture(self) -> PictureOf:
        """What claims about altered pixels speak of: the file, or only what the network is given."""
        return picture_of(self.resample)

    def check_made(self, gallery: Path | str, made_by: str) -> None:
        """Refuse this embedder for a gallery whose vectors the embedder `made_by` made."""
        if made_by not in (self.fingerprint, *self.also):
            raise GalleryError(
                f"{gallery} was made by embedder {made_by[:12]}, not by {self.fingerprint[:12]};"
                " use that embedder, or index the images into another gallery"
            )

    def __post_init__(self) -> None:
        if not self.fingerprint:
            raise GalleryError("an embedder needs a fingerprint; found an empty one")
        try:
            json.dumps(self.card, allow_nan=False)
        except (TypeError, ValueError) as cause:
            raise GalleryError(f"the card of an embedder must be plain JSON: {cause}") from cause


def of_before(gallery: Path | str) -> str:
    """Why a gallery of an earlier version proves nothing by what it stores, and what to do."""
    return (
        f"{gallery} was made by an earlier version, whose boxes and kept certificates may be of another model; "
        f"check them with 'holdfast gallery upgrade {gallery}'"
    )


@dataclass(frozen=True)
class Item:
    """One candidate of a gallery, without its vector."""

    id: str
    label: str | None = None
    path: str | None = None
    digest: str | None = None


@dataclass(frozen=True)
class GalleryInfo:
    """What a gallery says of itself; `generation` grows by one with each committed write of candidates."""

    path: Path | str
    uid: str
    dim: int
    count: int
    embedder: EmbedderInfo
    created: str
    generation: int
    boxes: tuple[float, ...] = ()
    """For which eps (linf) it has boxes of what altered candidates can become; smallest first."""
    index: str = "FLAT"
    """How the nearest are found: FLAT compares with all; any other may miss some."""


@dataclass(frozen=True)
class Hit:
    """A candidate at a rank (1 = nearest).

    `distance` is Euclidean, in float64. `tied` says that another candidate of the gallery, shown
    or just beyond the last rank shown, has the same distance; tied candidates are ordered by id.
    """

    rank: int
    id: str
    distance: float
    label: str | None = None
    path: str | None = None
    tied: bool = False


@dataclass(frozen=True)
class Hits:
    """The hits of one query: ranks 1, 2, …, distances never decreasing, ties ordered by id."""

    query: str
    hits: tuple[Hit, ...]

    def __post_init__(self) -> None:
        for rank, hit in enumerate(self.hits, start=1):
            if hit.rank != rank:
                raise GalleryError(f"hits of query '{self.query}' have rank {hit.rank} where {rank} belongs")
            if not (math.isfinite(hit.distance) and hit.distance >= 0):
                raise GalleryError(f"hit '{hit.id}' of query '{self.query}' has distance {hit.distance}")
        for near, far in pairwise(self.hits):
            if (near.distance, near.id) >= (far.distance, far.id):
                raise GalleryError(f"hits '{near.id}', '{far.id}' of query '{self.query}' are out of order")
            if near.distance == far.distance and not (near.tied and far.tied):
                raise GalleryError(f"hits '{near.id}', '{far.id}' of query '{self.query}' tie, unmarked")

    def __len__(self) -> int:
        return len(self.hits)
