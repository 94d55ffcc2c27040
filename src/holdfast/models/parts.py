"""Parts of a network: what learns where the rest is frozen, and the features that its last layer gets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from holdfast.errors import ModelError
from holdfast.models.embedder import Embedder
from holdfast.models.modes import evaluating
from holdfast.models.projected import HEAD, Projected
from holdfast.models.registry import MODELS

Part = Literal["all", "last-blocks", "head"]


def learn_only(embedder: Embedder, part: Part) -> None:
    """Freeze what is not of `part`, batch norm everywhere included: its statistics are the frozen layers' too."""
    if part == "all":
        return
    name = embedder.architecture["name"]
    head, last_blocks = _parts(embedder)
    starts = [*([head] if head else []), *(last_blocks if part == "last-blocks" else ())]
    if part == "last-blocks" and not last_blocks:
        raise ModelError(
            f"{name} has no blocks of which the last could learn by themselves; take head or all"
        )
    if part == "head" and isinstance(head_of(embedder), nn.Identity):
        raise ModelError(
            f"{name} without a head has nothing that could learn by itself; give it one (head=linear)"
        )
    for entry, parameter in embedder.network.named_parameters():
        parameter.requires_grad_(entry.startswith(tuple(starts)))
    embedder.freeze_batch_norm = True


def head_of(embedder: Embedder) -> nn.Module:
    """The last layer; an identity where a network has none of ours."""
    head, _ = _parts(embedder)
    return embedder.network.get_submodule(head.rstrip(".")) if head else nn.Identity()


def _parts(embedder: Embedder) -> tuple[str, tuple[str, ...]]:
    """How the names of the last layer begin (nothing where there is none of ours), and those of the last blocks."""
    blueprint = MODELS.get(embedder.architecture["name"])
    added = isinstance(embedder.network, Projected)
    if blueprint is None:
        return f"{HEAD}." if added else "", _last_blocks(embedder.network)
    if added:
        return f"{HEAD}.", tuple(f"network.{start}" for start in blueprint.last_blocks)
    return blueprint.classifier, blueprint.last_blocks


def _last_blocks(network: nn.Module, count: int = 2) -> tuple[str, ...]:
    """The last blocks of the largest row of blocks."""

    def size(row: nn.Module) -> int:
        return sum(parameter.numel() for parameter in row.parameters())

    rows = [
        (name, part)
        for name, part in network.named_modules()
        if isinstance(part, nn.ModuleList | nn.Sequential) and len(part) > count
    ]
    if not rows:
        return ()
    name, row = max(rows, key=lambda found: size(found[1]))
    return tuple(
        ".".join(filter(None, [name, child])) + "." for child, _ in list(row.named_children())[-count:]
    )


class Head(nn.Module):
    """The end of an embedder, from the features that its last layer gets to the embedding."""

    def __init__(self, embedder: Embedder) -> None:
        super().__init__()
        self.last = head_of(embedder)
        self.unit_norm = embedder.unit_norm

    def forward(self, features: Tensor) -> Tensor:
        vectors: Tensor = self.last(features)
        return functional.normalize(vectors, dim=1) if self.unit_norm else vectors


@contextmanager
def before_head(embedder: Embedder) -> Iterator[Callable[[Tensor], Tensor]]:
    """A function from images to the features that the last layer gets, without gradient, in eval mode."""
    seen: list[Tensor] = []
    head = Head(embedder)
    handle = head.last.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))

    def features(images: Tensor) -> Tensor:
        seen.clear()
        with torch.no_grad():
            vectors = embedder(images)
            found = seen[0]
            if not torch.allclose(head(found), vectors, atol=1e-5):
                raise ModelError(
                    "something comes after the network's last layer, so it cannot learn by itself"
                )
        return found

    try:
        with evaluating(embedder):
            yield features
    finally:
        handle.remove()
