"""Randomness that depends on the seed and the place it is used, and on nothing else.

Each step of training draws from a generator seeded by (seed, step): a run that is stopped and
resumed needs no generator state to go on exactly as it would have. An attack draws from (seed, image
number): what is drawn for an image does not depend on the batch it comes in.
"""

from __future__ import annotations

import hashlib

import torch


def derive(seed: int, *place: str | int) -> int:
    """A 63-bit seed for one place of use; different places give unrelated seeds."""
    text = "/".join(str(part) for part in (seed, *place))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def generator(seed: int, *place: str | int) -> torch.Generator:
    """A generator for one place of use."""
    return torch.Generator().manual_seed(derive(seed, *place))
