"""The rows of a gallery in Milvus: what a candidate and a box look like there, and how they are read back.

A row is written once and never changed; a candidate that is updated gets another slot. Each row has a checksum
over what it says and its slot, so that nothing else passes for it. Infinite radii are written as −1, an infinite
reach as the largest float32: Milvus takes finite numbers only.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from holdfast.errors import GalleryError
from holdfast.gallery.boxes import Boxes
from holdfast.gallery.exact import Floats, Slots
from holdfast.gallery.stores.base import LostError
from holdfast.gallery.values import Item

LONGEST = 65535
"""Bytes of an item's id, label, path and digest together, as JSON."""
DIMS = (2, 32768)
"""The lengths that a vector in Milvus may have."""

CANDIDATE = ("slot", "vector", "key", "item", "check")
BOX = ("slot", "vector", "reach", "check")

Row = Mapping[str, Any]

_FARTHEST = np.finfo(np.float32).max


def candidate_fields(dim: int) -> dict[str, dict[str, Any]]:
    """The fields of the collection of candidates."""
    from pymilvus import DataType

    return {
        "slot": {"datatype": DataType.INT64, "is_primary": True},
        "vector": {"datatype": DataType.FLOAT_VECTOR, "dim": dim},
        "key": {"datatype": DataType.INT64},
        "item": {"datatype": DataType.VARCHAR, "max_length": LONGEST},
        "check": {"datatype": DataType.INT64},
    }


def box_fields(dim: int) -> dict[str, dict[str, Any]]:
    """The fields of a collection of boxes; its vector is the centre and then the radius."""
    from pymilvus import DataType

    return {
        "slot": {"datatype": DataType.INT64, "is_primary": True},
        "vector": {"datatype": DataType.FLOAT_VECTOR, "dim": 2 * dim},
        "reach": {"datatype": DataType.FLOAT},
        "check": {"datatype": DataType.INT64},
    }


def key(id: str) -> int:
    """What an id is looked up by: a number, equal for equal ids and nearly always different for others."""
    return int.from_bytes(hashlib.blake2b(id.encode(), digest_size=8).digest(), "big", signed=True)


def candidates(slots: Iterable[int], items: Sequence[Item], vectors: Floats) -> list[dict[str, Any]]:
    """The rows of candidates in these slots."""
    rows = []
    for slot, item, vector in zip(slots, items, vectors, strict=True):
        text = json.dumps([item.id, item.label, item.path, item.digest])
        if len(text) > LONGEST:
            raise GalleryError(
                f"what is stored of '{item.id[:60]}' is {len(text)} bytes long; Milvus takes {LONGEST}: shorten its"
                " id, label or path"
            )
        check = _check(slot, text.encode()) << 32 | _check(slot, vector.tobytes())
        rows.append(
            {"slot": slot, "vector": vector, "key": key(item.id), "item": text, "check": _signed(check)}
        )
    return rows


def boxes(slots: Iterable[int], found: Boxes, vectors: Floats) -> list[dict[str, Any]]:
    """The rows of the boxes of candidates in these slots."""
    reach = np.minimum(found.reach(vectors)[:, 0], _FARTHEST)
    flat = np.concatenate(
        [found.centre, np.where(np.isinf(found.radius), np.float32(-1), found.radius)], axis=1
    )
    rows = []
    for slot, numbers, far in zip(slots, flat, reach, strict=True):
        check = _check(slot, numbers.tobytes() + far.tobytes())
        rows.append({"slot": slot, "vector": numbers, "reach": float(far), "check": check})
    return rows


def item_of(row: Row) -> Item:
    """The item of a row of candidates; refused if it is not what was written."""
    if (row["check"] & (1 << 64) - 1) >> 32 != _check(row["slot"], row["item"].encode()):
        raise GalleryError(f"the item in slot {row['slot']} does not match its checksum")
    return Item(*json.loads(row["item"]))


def vectors_of(rows: Sequence[Row], dim: int) -> Floats:
    """The vectors of rows of candidates, bit by bit those that were written, or an error."""
    found = np.array([row["vector"] for row in rows], dtype=np.float32).reshape(len(rows), dim)
    for row, vector in zip(rows, found, strict=True):
        if row["check"] & (1 << 32) - 1 != _check(row["slot"], vector.tobytes()):
            raise GalleryError(f"the vector in slot {row['slot']} does not match its checksum")
    return found


def boxes_of(rows: Sequence[Row], dim: int) -> tuple[Boxes, Floats]:
    """The boxes of rows, and how far their candidates can move."""
    flat = np.array([row["vector"] for row in rows], dtype=np.float32).reshape(len(rows), 2 * dim)
    reach = np.array([row["reach"] for row in rows], dtype=np.float32)
    for row, numbers, far in zip(rows, flat, reach, strict=True):
        if row["check"] != _check(row["slot"], numbers.tobytes() + far.tobytes()):
            raise GalleryError(f"the box in slot {row['slot']} does not match its checksum")
    radius = flat[:, dim:]
    return Boxes(flat[:, :dim], np.where(radius < 0, np.float32(np.inf), radius)), np.where(
        reach >= _FARTHEST, np.float32(np.inf), reach
    )


def in_order(rows: Mapping[int, Row], slots: Slots) -> list[Row]:
    """The rows of these slots, in that order; one that is missing was removed meanwhile, or lost."""
    missing = [slot for slot in slots.tolist() if slot not in rows]
    if missing:
        raise LostError(f"no row is in slot {missing[0]}")
    return [rows[slot] for slot in slots.tolist()]


def _check(slot: int, content: bytes) -> int:
    return zlib.crc32(content, zlib.crc32(str(slot).encode()))


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value
