"""Where a model computes: the processor, or a graphics card."""

from __future__ import annotations

import os

import torch

from holdfast.errors import ModelError
from holdfast.models.callable import CallableEmbedder
from holdfast.models.embedder import Embedder
from holdfast.models.smoothed import Smoothed


def device_of(asked: str) -> torch.device:
    """The device that `auto`, `cpu`, `cuda`, `cuda:N` or `mps` means here; one line where it is not there.

    `auto` is the first CUDA device, else the processor.
    """
    kind, _, number = asked.partition(":")
    if kind == "auto" and not number:
        kind = "cuda" if torch.cuda.is_available() else "cpu"
    if kind not in ("cpu", "cuda", "mps") or (number and not (kind == "cuda" and number.isdecimal())):
        raise ModelError(f"a device is auto, cpu, cuda, cuda:N or mps, not '{asked}'")
    if kind == "cuda":
        count = torch.cuda.device_count()
        if int(number or 0) >= count:
            raise ModelError(f"there is no {asked} here: torch sees {count} CUDA devices; take cpu or auto")
        # Deterministic products on CUDA need it, and torch reads it once.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if kind == "mps" and not torch.backends.mps.is_available():
        raise ModelError("there is no mps here: torch sees no Apple GPU; take cpu or auto")
    return torch.device(kind, int(number)) if number else torch.device(kind)


def placed(
    embedder: Embedder | CallableEmbedder | Smoothed, asked: str
) -> Embedder | CallableEmbedder | Smoothed:
    """The embedder, moved to a device. One that is no torch module computes where it wants to."""
    device = device_of(asked)
    if isinstance(embedder, Embedder):
        embedder.to(device)
    elif device.type != "cpu" and asked != "auto":
        raise ModelError(
            "a callable or ONNX file is no torch module, so it cannot be moved; leave the device out"
        )
    return embedder
