"""The embedder: images in [0, 1] to vectors."""

from __future__ import annotations

import copy
import dataclasses
import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from holdfast import progress as progress_bar
from holdfast.errors import ModelError
from holdfast.models.fingerprint import fingerprint, fingerprint_of_before, settings, tensors_digest
from holdfast.models.inference import inference
from holdfast.models.inputs import Images, reader
from holdfast.models.modes import set_batch_norm_eval
from holdfast.models.pixels import Normalise, Pixels
from holdfast.models.sides import CandidateSide, Sided
from holdfast.spec import ImageSpec, Resample


class Embedder(Sided, nn.Module):
    """f: images in [0, 1] (N×C×H×W floats) → vectors (N×dim). Pixel normalisation is inside.

    These are the vectors of queries; candidates have the same, unless it has a `candidate_side`.

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
    pretrained: bool
    """Whether its first weights were given, not drawn."""
    card: dict[str, Any] | None
    """The card of the checkpoint this embedder was loaded from, if it was."""
    metric: dict[str, Any] | None
    """The learned metric that is its last layer, if there is one (`models.folded`)."""
    longest: float | None
    """A bound on the length of its vectors, where they are not normalised and yet have one."""
    frozen: bool
    """Whether who owns it vouches that it stays as it is: its fingerprint is then computed once, not each time."""
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
        candidate_side: CandidateSide | None = None,
    ) -> None:
        super().__init__()
        if candidate_side is not None:
            candidate_side.check(dim, unit_norm)
        self.candidate_side = candidate_side
        self.spec = spec
        self.dim = dim
        self.unit_norm = unit_norm
        self.pixels = pixels
        self.architecture = dict(architecture)
        self.freeze_batch_norm = False
        self.pretrained = False
        self.card = None
        self.metric = None
        self.longest = None
        self.frozen = False
        self._printed: tuple[object, tuple[str, ...]] | None = None
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

    def scaled(self, vectors: Tensor) -> Tensor:
        """Features at unit length, where the embedder normalises; the zero vector has no direction and stays zero."""
        return functional.normalize(vectors, dim=1) if self.unit_norm else vectors

    def forward(self, images: Tensor) -> Tensor:
        return self.scaled(self.features(images))

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        if mode and self.freeze_batch_norm:
            set_batch_norm_eval(self)
        return self

    def embed(self, images: Images, batch_size: int = 256, progress: bool = False) -> Tensor:
        """The vectors of `images` (uint8, floats in [0, 1], or an image set), on the CPU, without gradient.

        Runs in eval mode and in plain float arithmetic, and puts every setting back (`models.inference`). The
        batch size changes the result by float rounding only. Images of another shape, outside [0, 1] or with
        NaN are refused, and so is an embedder whose vectors are not finite. Threads may share an embedder; none of
        them may call `train()` on it meanwhile.
        """
        if batch_size < 1:
            raise ModelError(f"a batch has at least 1 image, not {batch_size}")
        total, read = reader(images, self.spec.shape)
        device, dtype = placement(self)
        with inference(self), _bar(total, progress) as advance:
            # Half precision goes into float32 as it is; numpy has no bfloat16.
            vectors = torch.empty((total, self.dim), dtype=torch.promote_types(dtype, torch.float32))
            start = 0
            while start < total:
                stop = min(start + batch_size, total)
                try:
                    batch = self(read(start, stop).to(device=device, dtype=dtype))
                except torch.OutOfMemoryError as cause:
                    batch_size = _halved(stop - start, cause)
                    continue
                finite = batch.isfinite().all(1)
                if not bool(finite.all()):
                    where = start + int(finite.to(torch.uint8).argmin())
                    raise ModelError(
                        f"the vector of image {where} is not finite; train it again or load other weights"
                    )
                vectors[start:stop] = batch
                advance(stop - start)
                start = stop
        return vectors

    def resampled(self, resample: Resample) -> Self:
        """The same network, for pictures that another filter brings to its size."""
        if resample == self.spec.resample:
            return self
        other = copy.copy(self)
        other.spec = dataclasses.replace(self.spec, resample=resample)
        if self.card is not None:
            other.card = {**self.card, "spec": other.spec.describe()}
        return other

    def describe(self) -> dict[str, Any]:
        """Everything but the weights that makes this embedder what it is, ready for JSON."""
        return {
            "architecture": dict(self.architecture),
            "spec": self.spec.describe(),
            "dim": self.dim,
            "unit_norm": self.unit_norm,
            "pixels": None if self.pixels is None else self.pixels.describe(),
            **({} if self.metric is None else {"metric": self.metric}),
            **({} if self.candidate_side is None else {"candidate_side": self.candidate_side.describe()}),
        }

    def settings(self) -> str:
        """All that decides, beside its tensors and `describe`, what its network computes: equal means unchanged."""
        return repr([settings(part) for part in (self.normalise, self.network, self.flatten)])

    def fingerprint(self) -> str:
        """A hash that follows the function: equal means the same function (`models.fingerprint`).

        Where torch.fx cannot follow the network, it differs as far as settings, public attributes and three fixed
        images show it. The name of the Python module that a wrapped class is imported from does not count.
        """
        return self.fingerprints()[0]

    def fingerprints(self) -> tuple[str, ...]:
        """All hashes that stand for this embedder: by today's rule, then by that of files of before (bicubic only)."""
        if self.frozen and self._printed is not None:
            return self._printed[1]
        # The weights are read each time: writing through `.data` leaves no other trace.
        description = self.describe()
        state = (tensors_digest(self), self.settings(), repr(description))
        if self._printed is None or self._printed[0] != state:
            description["architecture"].pop("module", None)
            today = fingerprint(self, description, self.spec.shape)
            described = {**description, "spec": self.spec.before}
            before = [fingerprint_of_before(self.network, described)] if self.spec.is_of_before else []
            self._printed = state, (today, *before)
        return self._printed[1]


def _halved(batch: int, cause: Exception) -> int:
    """A smaller batch, where the memory of a graphics card did not hold this one."""
    if batch == 1:
        raise ModelError(
            "the device's memory does not hold a single image's pass; take the device cpu"
        ) from cause
    half = batch // 2
    logging.getLogger("holdfast").warning("out of memory on the device: going on with batches of %d", half)
    torch.cuda.empty_cache()
    return half


def _bar(total: int, wanted: bool) -> AbstractContextManager[progress_bar.Advance]:
    return progress_bar.bar("embedding", total) if wanted else nullcontext(lambda steps=1, note="": None)


def placement(module: nn.Module) -> tuple[torch.device, torch.dtype]:
    """Where the module computes, and in which floats: those of its first floating tensor."""
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.is_floating_point():
            return tensor.device, tensor.dtype
    return torch.device("cpu"), torch.get_default_dtype()
