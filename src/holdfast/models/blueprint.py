"""What the registry knows of a network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from holdfast.errors import ModelError
from holdfast.models.pixels import Pixels
from holdfast.models.shipped import Shipped

IMAGENET = Pixels(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
HEADS = ("linear", "none")


@dataclass(frozen=True)
class Blueprint:
    """How a registered network is built, and what it is when nothing else is asked for.

    `network(spec, dim, **options)` gives the network and its embedding size; its keyword-only
    arguments are the options. `classifier` is how the names of the last layer begin, which is
    ours and never read from a file of weights; `last_blocks` are how the names of the layers before it begin
    that are worth fine-tuning by themselves.
    """

    network: Callable[..., tuple[nn.Module, int]]
    dim: int
    unit_norm: bool
    classifier: str
    last_blocks: tuple[str, ...] = ()
    min_side: int = 1
    colour_only: bool = False
    pixels: Pixels | None = None
    shipped: Shipped | None = None


def embedding_layer(width: int, dim: int, head: str) -> tuple[nn.Module, int]:
    """The layer that ends a backbone of `width` features, and its size: a linear one or none at all."""
    if head == "linear":
        return nn.Linear(width, dim), dim
    if head == "none":
        return nn.Identity(), width
    raise ModelError(f"head is one of {', '.join(HEADS)}, not '{head}'")
