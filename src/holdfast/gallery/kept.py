"""Certificates that a gallery keeps: enough of a query to certify it again, and what was proved last."""

from __future__ import annotations

from dataclasses import dataclass, replace

from holdfast.gallery.exact import Doubles, Floats


@dataclass(frozen=True)
class KeptHit:
    """A hit and the ranks it keeps, as last proved."""

    id: str
    best: int
    worst: int
    verdict: str


@dataclass(frozen=True)
class Kept:
    """A certificate for the query `query`: its k hits under `threat`, at the gallery's `generation`.

    `centre` and `radius` are the box of the query's features before normalisation, float64; None if
    the threat leaves the query alone.
    """

    query: str
    threat: str
    k: int
    generation: int
    hits: tuple[KeptHit, ...]
    unit_norm: bool
    embedding: Floats
    centre: Doubles | None = None
    radius: Doubles | None = None

    @property
    def named(self) -> tuple[str, str, int]:
        """What no other certificate of the gallery has: query, threat and k."""
        return self.query, self.threat, self.k

    def same(self, other: Kept) -> bool:
        """Whether it says what another says, to the last bit."""
        return self._said() == other._said()

    def _said(self) -> tuple[object, ...]:
        arrays = (self.embedding, self.centre, self.radius)
        bits = (None if array is None else array.tobytes() for array in arrays)
        return (*self.named, self.generation, self.hits, self.unit_norm, *bits)

    def unproved(self, count: int) -> Kept:
        """The same without what it proves: every hit may be anywhere among `count` candidates."""
        hits = tuple(KeptHit(hit.id, 1, count, "UNKNOWN") for hit in self.hits)
        return replace(self, hits=hits)

    @property
    def certified(self) -> int:
        """How many of the hits surely stay."""
        return sum(hit.verdict == "CERTIFIED" for hit in self.hits)


@dataclass(frozen=True)
class Changed:
    """A kept certificate that is no longer what it was; `changes` has one line for each hit that differs."""

    query: str
    threat: str
    k: int
    changes: tuple[str, ...]


@dataclass(frozen=True)
class Rechecked:
    """How many certificates the gallery keeps, and which of them changed."""

    kept: int = 0
    changed: tuple[Changed, ...] = ()
