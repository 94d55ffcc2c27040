"""The table of kept certificates."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import numpy as np

from holdfast.gallery.kept import Kept, KeptHit
from holdfast.gallery.stores.sqlite.checksums import checksum, part_hash, root_of
from holdfast.gallery.stores.sqlite.database import DamageError
from holdfast.gallery.stores.sqlite.meta import Meta

_FIELDS = "query, threat, k, generation, checksum, hits, unit_norm, embedding, centre, radius"


def read(connection: sqlite3.Connection, state: Meta) -> list[Kept]:
    """All kept certificates, by query; refused if they are not those of `state`."""
    if not state.bound and not _has_table(connection):
        return []
    found = connection.execute(f"SELECT {_FIELDS} FROM certificates ORDER BY query, threat, k").fetchall()
    kept = [_decode(*row) for row in found]
    if state.bound and root_of(_part(*row) for row in found) != state.kept:
        raise DamageError("its kept certificates are not those of the last write")
    return kept


def write(connection: sqlite3.Connection, certificates: Iterable[Kept]) -> int:
    """Keep these; one for the same query, threat and k is replaced. Gives by how much the root of all changes."""
    change = 0
    for one in certificates:
        change ^= _delete(connection, "query = ? AND threat = ? AND k = ?", one.named)
        row = _encode(one)
        connection.execute(f"INSERT INTO certificates ({_FIELDS}) VALUES (?{', ?' * (len(row) - 1)})", row)
        change ^= _part(*row)
    return change


def forget(connection: sqlite3.Connection, queries: Iterable[str]) -> tuple[int, int]:
    """Drop all certificates of these queries; how many there were, and by how much the root of all changes."""
    count, change = 0, 0
    for name in queries:
        (there,) = connection.execute("SELECT count(*) FROM certificates WHERE query = ?", (name,)).fetchone()
        count += there
        change ^= _delete(connection, "query = ?", (name,))
    return count, change


def root(connection: sqlite3.Connection) -> int:
    """The root of the certificates that are there."""
    found = connection.execute(f"SELECT {_FIELDS} FROM certificates")
    return root_of(_part(*row) for row in found)


def _has_table(connection: sqlite3.Connection) -> bool:
    found = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'certificates'").fetchone()
    return found is not None


def _delete(connection: sqlite3.Connection, which: str, values: tuple[object, ...]) -> int:
    gone = connection.execute(f"SELECT {_FIELDS} FROM certificates WHERE {which}", values).fetchall()
    connection.execute(f"DELETE FROM certificates WHERE {which}", values)
    return root_of(_part(*row) for row in gone)


def _part(*row: Any) -> int:
    """What a certificate adds to the root of all."""
    query, threat, k, _, stored, *_ = row
    return part_hash(query, threat, k, stored)


def _encode(one: Kept) -> tuple[Any, ...]:
    hits = json.dumps([asdict(hit) for hit in one.hits])
    box = (None if part is None else part.astype("<f8").tobytes() for part in (one.centre, one.radius))
    fields = (one.query, one.threat, one.k, one.generation)
    rest = (hits, int(one.unit_norm), one.embedding.astype("<f4").tobytes(), *box)
    return (*fields, checksum(*fields, *rest), *rest)


def _decode(*row: Any) -> Kept:
    query, threat, k, generation, stored, hits, unit_norm, embedding, centre, radius = row
    # The values are compared with their types: no other kind of value matches.
    if stored != checksum(query, threat, k, generation, hits, unit_norm, embedding, centre, radius):
        raise DamageError(f"the kept certificate of {query!r} does not match its checksum")
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
