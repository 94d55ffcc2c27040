"""What every way of proving something about a search answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import ClassVar

from holdfast.data import Picture
from holdfast.errors import HoldfastError
from holdfast.gallery.exact import Floats
from holdfast.gallery.gallery import Gallery
from holdfast.gallery.values import GalleryInfo, Hits
from holdfast.models import AnyEmbedder
from holdfast.threat import Threat


@dataclass(frozen=True)
class Query:
    """The picture that is asked about, as the network takes it."""

    picture: Picture
    name: str = "query"


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a proof is to be made; a prover refuses what is not for it. None: as it does by itself."""

    method: str | None = None
    """How hard bounds try (`holdfast.methods`)."""
    keep: bool = False
    """Whether the gallery keeps the certificate, to be checked again when its candidates change."""
    samples: int | None = None
    """How many noisy copies answer."""
    rule: str | None = None
    """By what noisy copies list hits: mean or votes."""
    seed: int | None = None
    """Of the noise: repeats a search."""

    def given(self) -> set[str]:
        """The options that somebody chose."""
        return {field.name for field in fields(self) if getattr(self, field.name) != field.default}


@dataclass(frozen=True)
class Cost:
    """What a proof for one query takes: passes of the network, as far as they are known before."""

    passes: int
    is_expensive: bool
    """Whether it takes seconds rather than milliseconds."""


class Prover(ABC):
    """One way to get certificates for the hits of a search, with one embedder."""

    name: ClassVar[str]
    words: ClassVar[str]
    """The galleries that it is for."""
    options: ClassVar[frozenset[str]]
    """Which `Options` it takes."""
    usual: ClassVar[Threat | None] = None
    """What is asked where no threat is named; None where a search needs no proof."""

    @classmethod
    @abstractmethod
    def lacks(cls, embedder: AnyEmbedder) -> str | None:
        """Why it is not for this embedder; None where it is."""

    def __init__(self, embedder: AnyEmbedder) -> None:
        self._embedder = embedder

    @abstractmethod
    def threats(self, info: GalleryInfo) -> tuple[str, ...]:
        """What it can certify in a gallery: WHO:NORM."""

    def methods(self, info: GalleryInfo) -> tuple[str, ...]:
        """How hard it can try in a gallery, least first; none where there is no choice."""
        return ()

    @abstractmethod
    def refuses(self, threat: Threat, options: Options, info: GalleryInfo) -> HoldfastError | None:
        """Why it cannot answer this in this gallery, as the error to raise; None where it can."""

    @abstractmethod
    def cost(self, threat: Threat, options: Options, info: GalleryInfo) -> Cost:
        """What one query costs."""

    def vector(self, query: Query, gallery: Gallery, found: Hits) -> Floats:
        """The vector by which a search that it proved ranked the candidates."""
        vector: Floats = self._embedder.embed(query.picture.pixels[None]).numpy()[0]
        return vector

    @abstractmethod
    def prove(self, query: Query, gallery: Gallery, k: int, threat: Threat, options: Options) -> Hits:
        """The first k hits of the query, each with a certificate; asked what it does not refuse."""
