"""Certificates that a gallery keeps: enough of a query to certify it again, and what was proved last."""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from holdfast.gallery import database
from holdfast.gallery.database import DamageError
from holdfast.gallery.exact import Doubles, Floats

_FIELDS = "query, threat, k, generation, checksum, hits, unit_norm, embedding, centre, radius"


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


def read(connection: sqlite3.Connection) -> list[Kept]:
    """All kept certificates, by query; a gallery from before there were any has none."""
    if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'certificates'").fetchone() is None:
        return []
    found = connection.execute(f"SELECT {_FIELDS} FROM certificates ORDER BY query, threat, k")
    return [_decode(*row) for row in found]


def write(connection: sqlite3.Connection, certificates: Iterable[Kept]) -> None:
    """Keep these; one for the same query, threat and k is replaced."""
    database.upgrade(connection)
    connection.executemany(
        f"INSERT OR REPLACE INTO certificates ({_FIELDS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (_encode(one) for one in certificates),
    )


def unchanged(connection: sqlite3.Connection, certificates: Iterable[Kept]) -> set[tuple[str, str, int]]:
    """The query, threat and k of those of these that are still kept as they are here."""
    found = connection.execute("SELECT query, threat, k, checksum FROM certificates")
    there = {(query, threat, k): checksum for query, threat, k, checksum in found}
    return {one.named for one in certificates if there.get(one.named) == _encode(one)[4]}


def forget(connection: sqlite3.Connection, queries: Iterable[str]) -> int:
    """Drop all certificates of these queries, and say how many there were."""
    database.upgrade(connection)
    gone = connection.executemany("DELETE FROM certificates WHERE query = ?", ((name,) for name in queries))
    return gone.rowcount


def _encode(one: Kept) -> tuple[Any, ...]:
    hits = json.dumps([asdict(hit) for hit in one.hits])
    box = (None if part is None else part.astype("<f8").tobytes() for part in (one.centre, one.radius))
    fields = (one.query, one.threat, one.k, one.generation)
    rest = (hits, int(one.unit_norm), one.embedding.astype("<f4").tobytes(), *box)
    return (*fields, _checksum(*fields, *rest), *rest)


def _decode(
    query: str,
    threat: str,
    k: int,
    generation: int,
    checksum: int,
    hits: str,
    unit_norm: int,
    embedding: bytes,
    centre: bytes | None,
    radius: bytes | None,
) -> Kept:
    if checksum != _checksum(query, threat, k, generation, hits, unit_norm, embedding, centre, radius):
        raise DamageError(f"the kept certificate of '{query}' does not match its checksum")
    box = [None if part is None else np.frombuffer(part, dtype="<f8").copy() for part in (centre, radius)]
    return Kept(
        query,
        threat,
        k,
        generation,
        tuple(KeptHit(**hit) for hit in json.loads(hits)),
        bool(unit_norm),
        np.frombuffer(embedding, dtype="<f4").copy(),
        *box,
    )


def _checksum(*fields: object) -> int:
    """CRC-32 over everything that a certificate says."""
    return zlib.crc32(repr(fields).encode())
