"""Embedders that are no torch modules: any callable from images to vectors. They give no gradients."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from holdfast.errors import ModelError
from holdfast.models.fingerprint import CURRENT, roughly, shown
from holdfast.models.inference import plain_arithmetic
from holdfast.models.inputs import Images, as_spec, reader
from holdfast.models.pixels import Normalise, PerChannel, pixels_for
from holdfast.models.sides import Sided
from holdfast.models.steady import check_steady
from holdfast.spec import ImageSpec, Resample


class CallableEmbedder(Sided):
    """`function`: images in [0, 1] (N×C×H×W float32) → vectors (N×D, a tensor or an array), a black box.

    It has what searching, evaluating and attacking need of an embedder. `name` and `source` (a digest
    of its file, say) go into its fingerprint, and so does what it gives for three fixed images:
    weights that are read from elsewhere count too. `mean` and `std` are the pixel normalisation that it wants.
    """

    card: dict[str, Any] | None = None
    metric: dict[str, Any] | None = None
    longest: float | None = None

    def __init__(
        self,
        function: Callable[[Tensor], Any],
        spec: ImageSpec | tuple[int, int, int],
        *,
        name: str | None = None,
        source: str = "",
        unit_norm: bool = False,
        mean: PerChannel | None = None,
        std: PerChannel | None = None,
    ) -> None:
        if not callable(function):
            raise ModelError(f"a callable from images to vectors can be used, not {type(function).__name__}")
        self.spec = as_spec(spec)
        self.unit_norm = unit_norm
        self.name: str = name or str(getattr(function, "__qualname__", type(function).__qualname__))
        self._function, self._source = function, source
        self.pixels = pixels_for(self.spec, mean, std)
        self._normalise = torch.nn.Identity() if self.pixels is None else Normalise(self.pixels)
        self._digest, self._before = self._probe()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """In another process the function is asked anew: it may find other weights there."""
        self.__dict__.update(state)
        self._digest, self._before = self._probe()

    def _probe(self) -> tuple[str, str]:
        """Takes note of the vectors' size, and gives hashes of what the function gives for three fixed images.

        By today's rule, coarse enough to be the same on every machine, and by that of before.
        """
        seen = check_steady(self, self.spec.shape, self.name)
        self.dim = seen.shape[1]
        said = [{**self.describe(), "spec": self.spec.before}, self._source]
        texts = (json.dumps([*said, form(seen)], sort_keys=True) for form in (roughly, shown))
        today, before = (hashlib.sha256(text.encode()).hexdigest() for text in texts)
        return today, before

    def __call__(self, images: Tensor) -> Tensor:
        """The vectors of float images, checked to be one finite vector for each."""
        try:
            with plain_arithmetic(), torch.no_grad():
                vectors = torch.as_tensor(self._function(self._normalise(images))).detach().cpu()
        # A stranger's code may raise anything at all.
        except Exception as cause:
            why = str(cause).strip().splitlines() or [type(cause).__name__]
            raise ModelError(f"{self.name} cannot embed images of {self.spec}: {why[0]}") from cause
        if vectors.ndim > 2:
            vectors = vectors.flatten(1)
        if vectors.ndim != 2 or len(vectors) != len(images) or not vectors.shape[1]:
            found = "x".join(map(str, vectors.shape)) or "a single number"
            raise ModelError(f"{self.name} must give one vector per image ({len(images)} x D), found {found}")
        if not vectors.is_floating_point():
            found = str(vectors.dtype).removeprefix("torch.")
            raise ModelError(f"{self.name} must give vectors of floats, found {found}")
        vectors = vectors.float()
        if not bool(vectors.isfinite().all()):
            where = int((~vectors.isfinite().all(1)).to(torch.uint8).argmax())
            raise ModelError(f"{self.name} gives NaN or infinity for image {where} of a batch; check it")
        return torch.nn.functional.normalize(vectors, dim=1) if self.unit_norm else vectors

    def embed(self, images: Images, batch_size: int = 256) -> Tensor:
        """The vectors of `images` (uint8, floats in [0, 1], or an image set)."""
        if batch_size < 1:
            raise ModelError(f"a batch has at least 1 image, not {batch_size}")
        total, read = reader(images, self.spec.shape)
        vectors = torch.empty((total, self.dim))
        for start in range(0, total, batch_size):
            stop = min(start + batch_size, total)
            vectors[start:stop] = self(read(start, stop).float())
        return vectors

    def resampled(self, resample: Resample) -> CallableEmbedder:
        """The same model, for pictures that another filter brings to its size."""
        if resample == self.spec.resample:
            return self
        other = copy.copy(self)
        other.spec = dataclasses.replace(self.spec, resample=resample)
        return other

    def describe(self) -> dict[str, Any]:
        """What makes this embedder what it is, ready for JSON."""
        return {
            "architecture": {"name": "foreign", "function": self.name},
            "spec": self.spec.describe(),
            "dim": getattr(self, "dim", 0),
            "unit_norm": self.unit_norm,
            **({} if self.pixels is None else {"pixels": self.pixels.describe()}),
            **({} if self.metric is None else {"metric": self.metric}),
        }

    def fingerprint(self) -> str:
        """A hash that differs for another name, file or function, as far as three images show it."""
        return self.fingerprints()[0]

    def fingerprints(self) -> tuple[str, ...]:
        """All hashes that stand for it: by today's rule, then by that of files of before (bicubic only)."""
        resize = "" if self.spec.resize is None else f" {self.spec.resize}"
        today = hashlib.sha256(f"{self._digest} {self.spec.resample}{resize}".encode()).hexdigest()
        return (CURRENT + today, self._before) if self.spec.is_of_before else (CURRENT + today,)
