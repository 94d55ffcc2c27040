"""The values a gallery takes and gives: hits, items, and what is known of its embedder."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, overload

from holdfast.certificate import Certificate, Proof, Verdict
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
    certificate: Certificate | None = None
    """What no attack can do to it, where the search proved something."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON: the hit's fields, and those of its certificate."""
        own = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "certificate"}
        return own if self.certificate is None else {**own, **self.certificate.to_dict()}

    def lines(self) -> list[str]:
        """What stands below its picture."""
        named = [self.id] if self.label is None else [self.label, self.id]
        more = [] if self.certificate is None else self.certificate.lines()
        return [*named, f"{self.distance:.4f}{' (tied)' if self.tied else ''}", *more]


@dataclass(frozen=True)
class Hits(Sequence[Hit]):
    """The hits of one query: ranks 1, 2, …, distances never decreasing, ties ordered by id."""

    query: str
    hits: tuple[Hit, ...]
    proof: Proof | None = None
    """What holds for all hits together, where the search proved something."""

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

    @overload
    def __getitem__(self, place: int) -> Hit: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[Hit, ...]: ...
    def __getitem__(self, place: int | slice) -> Hit | tuple[Hit, ...]:
        return self.hits[place]

    def proved(self, proof: Proof, certificates: Sequence[Certificate]) -> Hits:
        """The same hits with their certificates."""
        proved = (replace(hit, certificate=one) for hit, one in zip(self.hits, certificates, strict=True))
        return Hits(self.query, tuple(proved), proof)

    @property
    def certificates(self) -> tuple[Certificate, ...]:
        """Those of the hits, in their order; none where the search proved nothing."""
        return tuple(hit.certificate for hit in self.hits if hit.certificate is not None)

    @property
    def certified(self) -> int:
        """How many of the hits are certified."""
        return sum(one.verdict == Verdict.CERTIFIED for one in self.certificates)

    @property
    def title(self) -> str:
        """The query, and what was asked about it."""
        return self.query if self.proof is None else f"{self.query}, {self.proof.title()}"

    @property
    def notes(self) -> list[str]:
        """What holds for all hits together, a line each."""
        return [] if self.proof is None else self.proof.notes()

    def cells(self) -> tuple[list[str], list[list[str]]]:
        """The headers and rows of a table."""
        proved = [{} if hit.certificate is None else hit.certificate.columns() for hit in self.hits]
        tied = [""] if any(hit.tied for hit in self.hits) else []
        headers = ["#", "id", "label", "distance", *tied, *(proved[0] if proved else ())]
        rows = [
            [str(hit.rank), hit.id, hit.label or "", f"{hit.distance:.4f}"]
            + (["tied" if hit.tied else ""] if tied else [])
            + list(more.values())
            for hit, more in zip(self.hits, proved, strict=True)
        ]
        return headers, rows

    def table(self) -> str:
        """The hits as a table of text, with what holds for all of them below."""
        from holdfast.tables import text

        return "\n".join([self.title, text(*self.cells()), *self.notes])

    def to_dict(self) -> dict[str, Any]:
        """For JSON: the hits, and what holds for all of them."""
        whole = {} if self.proof is None else self.proof.to_dict()
        return {"query": self.query, **whole, "hits": [hit.to_dict() for hit in self.hits]}

    def to_json(self) -> str:
        """`to_dict` as text."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)

    def html(self) -> str:
        """The query and its hits as pictures, where their files can be read; for a notebook or a page."""
        from holdfast.gallery.showing import html

        return html(self)

    _repr_html_ = html
