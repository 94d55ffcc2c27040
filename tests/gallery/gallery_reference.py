"""Slow and obvious: what a search must answer."""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from holdfast.gallery import EmbedderInfo, Hits

DIM = 5
EMBEDDER = EmbedderInfo("2:" + "a" * 64, {"name": "small", "dim": DIM}, "runs/first")


def distance(query: NDArray[np.float32], vector: NDArray[np.float32]) -> float:
    return float(np.sqrt(np.square(vector.astype(np.float64) - query.astype(np.float64)).sum()))


def ranking(
    query: NDArray[np.float32], ids: Sequence[str], vectors: NDArray[np.float32]
) -> list[tuple[str, float, bool]]:
    """All candidates as (id, distance, tied), in order."""
    found = sorted((distance(query, vector), id) for id, vector in zip(ids, vectors, strict=True))
    values = [value for value, _ in found]
    return [(id, value, values.count(value) > 1) for value, id in found]


def told(hits: Hits) -> list[tuple[str, float, bool]]:
    return [(hit.id, hit.distance, hit.tied) for hit in hits.hits]


def random(count: int, seed: int = 0, dim: int = DIM) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((count, dim), dtype=np.float32)


def names(count: int) -> list[str]:
    return [f"image-{number:04d}" for number in range(count)]


def to_version(path: Path, version: int) -> None:
    """Make a gallery's file one of an earlier version, 1 or 2: nothing in it is bound to its meta."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DROP INDEX item_keys")
        bound = {"meta": ("items", "kept", "checksum"), "items": ("key",), "columns": ("root",)}
        for table, column in ((table, column) for table, found in bound.items() for column in found):
            connection.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
        for slot, *said in connection.execute("SELECT slot, id, label, path, digest FROM items").fetchall():
            checksum = zlib.crc32(repr(tuple(said)).encode())
            connection.execute("UPDATE items SET checksum = ? WHERE slot = ?", (checksum, slot))
        if version == 1:
            connection.execute("DROP TABLE certificates")
        connection.execute(f"PRAGMA user_version = {version}")
