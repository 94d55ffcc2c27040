"""What one request may ask for, and how many may ask: everything a stranger could exhaust has a bound."""

from __future__ import annotations

import os
from dataclasses import dataclass

from holdfast.errors import ConfigError


@dataclass(frozen=True)
class Limits:
    """The bounds of a service."""

    k: int = 1000
    """Hits of one search."""
    bytes: int = 32 * 2**20
    """Of a request's body."""
    bodies: int = 8
    """Bodies of the largest size that are held at once, or more that are smaller; one caller may have half."""
    pixels: int = 40_000_000
    """Of one picture, told from its header, before anything is decoded."""
    batch: int = 64
    """Pictures of one batch search."""
    attack_steps: int = 200
    attack_pixels: int = 4_000_000
    """Of a picture that a live attack alters in its own size: its gradients are as large."""
    seconds: float = 30.0
    """From the first byte of a request to its answer."""
    waiting: int = 128
    """Plain searches of one caller under way or waiting; one more is refused."""
    heavy: int = max(1, (os.cpu_count() or 2) // 2)
    """Certified searches, attacks and writes that are worked on at once, each."""
    heavy_waiting: int = 16
    """Those of one caller under way or waiting, each."""
    connections: int = 512
    """Open at once; one more takes the place of one that is idle, or is closed."""
    connections_of_one: int = 256
    """Of one address."""
    head_seconds: float = 10.0
    """From the beginning of a connection, or the answer before, until the head of a request is there."""
    cache: int = 256 * 2**20
    """Bytes of pictures that were searched for and are kept to be shown again."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value > 0:
                raise ConfigError(f"the limit '{name}' is more than 0, not {value}")
        if self.bodies < 2:
            raise ConfigError("the limit 'bodies' is at least 2: one caller may take half of it")
