"""The checksums of a gallery, and what they are worth.

Every number and name that an answer or a proof uses is compared with a checksum when it is used, in this process:
a block of vectors or boxes when it is read or first taken from the cache, an item when it is named, a kept
certificate when it is listed, and what the gallery says of itself (`gallery.meta`) at the start of every read. A
value of another type than was written fails the comparison too.

They guard against faults: a flipped bit, a torn page, a write that never reached the disk. They do not guard
against someone who can write the file, who can write the checksums as well.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable


def checksum(*said: object) -> int:
    """CRC-32 over values and their types."""
    return zlib.crc32(repr(said).encode())


def part_hash(*said: object) -> int:
    """What one part (a block, a certificate) adds to the root of all: 64 bits over values and their types."""
    digest = hashlib.blake2b(repr(said).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def root_of(parts: Iterable[int]) -> int:
    """The exclusive or of what the parts add: a write changes it by the parts that it takes away and adds."""
    root = 0
    for part in parts:
        root ^= part
    return root
