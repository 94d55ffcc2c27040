"""What tells two embedders apart, as one hash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn


def fingerprint(network: nn.Module, description: Mapping[str, Any]) -> str:
    """SHA-256, in hex, over `description` and every parameter and buffer of `network`.

    Each tensor counts with its name, dtype, shape and bytes, so that embedders with the same
    fingerprint compute the same function. How the weights came about does not count.
    """
    digest = hashlib.sha256(_canonical(description))
    for name, tensor in sorted(_tensors(network), key=lambda entry: entry[0]):
        # The line says how many bytes follow, so no two sets of tensors hash the same stream.
        digest.update(_canonical([name, str(tensor.dtype), list(tensor.shape)]))
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _tensors(network: nn.Module) -> Iterator[tuple[str, Tensor]]:
    # Buffers outside the state dict count as well: they change what the network computes.
    yield from network.named_parameters(remove_duplicate=False)
    yield from network.named_buffers(remove_duplicate=False)


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode() + b"\n"
