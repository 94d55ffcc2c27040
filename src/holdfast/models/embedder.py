"""The embedder: images in [0, 1] to vectors."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from holdfast import progress as progress_bar
from holdfast.errors import ModelError
from holdfast.models.fingerprint import fingerprint
from holdfast.models.inputs import Images, reader
from holdfast.models.modes import evaluating, set_batch_norm_eval
from holdfast.models.pixels import Normalise, Pixels
from holdfast.spec import ImageSpec


class Embedder(nn.Module):
    """f: images in [0, 1] (N×C×H×W floats) → vectors (N×dim). Pixel normalisation is inside.

    `architecture` holds the registered name and options that rebuild `network`. With
    `freeze_batch_norm` set, `train()` leaves batch-norm layers in eval mode. `forward` and
    `features` check nothing, so that they can be traced; `embed` is the checked border.
    """

    spec: ImageSpec
    dim: int
    unit_norm: bool
    pixels: Pixels | None
    architecture: dict[str, Any]
    freeze_batch_norm: bool
    card: dict[str, Any] | None
    """The card of the checkpoint this embedder was loaded from, if it was."""
    metric: dict[str, Any] | None
    """The learned metric that is its last layer, if there is one (`models.folded`)."""
    longest: float | None
    """A bound on the length of its vectors, where they are not normalised and yet have one."""
    normalise: nn.Module
    network: nn.Module
    flatten: nn.Module

    def __init__(
        self,
        network: nn.Module,
        *,
        spec: ImageSpec,
        dim: int,
        unit_norm: bool,
        pixels: Pixels | None,
        architecture: Mapping[str, Any],
        flatten: bool = False,
    ) -> None:
        super().__init__()
        self.spec = spec
        self.dim = dim
        self.unit_norm = unit_norm
        self.pixels = pixels
        self.architecture = dict(architecture)
        self.freeze_batch_norm = False
        self.card = None
        self.metric = None
        self.longest = None
        self._printed: tuple[object, str] | None = None
        self.normalise = nn.Identity() if pixels is None else Normalise(pixels)
        self.network = network
        self.flatten = nn.Flatten(1) if flatten else nn.Identity()

    def __getstate__(self) -> dict[str, Any]:
        # A copy, perhaps in another process, looks at its own weights before it says whose they are.
        return {**self.__dict__, "_printed": None}

    def features(self, images: Tensor) -> Tensor:
        """The vectors before the optional L2 normalisation: what certificates bound."""
        vectors: Tensor = self.flatten(self.network(self.normalise(images)))
        return vectors

    def forward(self, images: Tensor) -> Tensor:
        vectors = self.features(images)
        # The zero vector has no direction and stays zero.
        return functional.normalize(vectors, dim=1) if self.unit_norm else vectors

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        if mode:
            self._printed = None
        if mode and self.freeze_batch_norm:
            set_batch_norm_eval(self)
        return self

    def embed(self, images: Images, batch_size: int = 256, progress: bool = False) -> Tensor:
        """The vectors of `images` (uint8, floats in [0, 1], or an image set), on the CPU, without gradient.

        Runs in eval mode and puts every layer's mode back. The batch size changes the result by float
        rounding only. Images of another shape, outside [0, 1] or with NaN are refused, and so is an
        embedder whose vectors are not finite.
        """
        if batch_size < 1:
            raise ModelError(f"a batch has at least 1 image, not {batch_size}")
        total, read = reader(images, self.spec)
        device, dtype = placement(self)
        vectors = torch.empty((total, self.dim), dtype=dtype)
        with evaluating(self), torch.no_grad(), _bar(total, progress) as advance:
            for start in range(0, total, batch_size):
                stop = min(start + batch_size, total)
                batch = self(read(start, stop).to(device=device, dtype=dtype))
                finite = batch.isfinite().all(1)
                if not bool(finite.all()):
                    where = start + int(finite.to(torch.uint8).argmin())
                    raise ModelError(
                        f"the vector of image {where} is not finite; train it again or load other weights"
                    )
                vectors[start:stop] = batch
                advance(stop - start)
        return vectors

    def describe(self) -> dict[str, Any]:
        """Everything but the weights that makes this embedder what it is, ready for JSON."""
        return {
            "architecture": dict(self.architecture),
            "spec": dataclasses.asdict(self.spec),
            "dim": self.dim,
            "unit_norm": self.unit_norm,
            "pixels": None
            if self.pixels is None
            else {"mean": list(self.pixels.mean), "std": list(self.pixels.std)},
            **({} if self.metric is None else {"metric": self.metric}),
        }

    def fingerprint(self) -> str:
        """SHA-256 over `describe()` and all parameters and buffers: equal means the same function.

        For a wrapped module the class counts by its name alone: its code cannot be hashed, and the
        module it is imported from may change its name. In eval mode it is computed again only when a tensor
        was written to or replaced; while a network trains always, since not every optimiser leaves a trace.
        """
        tensors = (*self.network.parameters(), *self.network.buffers())
        state = tuple((tensor.data_ptr(), tensor._version) for tensor in tensors)
        if self._printed is not None and self._printed[0] == state:
            return self._printed[1]
        description = self.describe()
        description["architecture"].pop("module", None)
        found = fingerprint(self.network, description)
        self._printed = None if self.training else (state, found)
        return found


def _bar(total: int, wanted: bool) -> AbstractContextManager[progress_bar.Advance]:
    return progress_bar.bar("embedding", total) if wanted else nullcontext(lambda steps=1, note="": None)


def placement(module: nn.Module) -> tuple[torch.device, torch.dtype]:
    """Where the module computes, and in which floats: those of its first floating tensor."""
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.is_floating_point():
            return tensor.device, tensor.dtype
    return torch.device("cpu"), torch.get_default_dtype()
