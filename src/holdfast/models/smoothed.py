"""The smoothed embedder g(x) = E h(x + z), z ~ N(0, σ²I): an average over noisy copies of an image.

It wraps any embedder h. Samples come in blocks whose noise depends on (seed, purpose, the image's pixels, block) alone:
the same whatever the batch size, the machine's threads or where a stopped run went on. Noise leaves [0, 1] and
is not clamped; an embedder that clamps is another h.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Callable, Iterator
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from holdfast import deadline
from holdfast.errors import ModelError
from holdfast.models.callable import CallableEmbedder
from holdfast.models.embedder import Embedder, placement
from holdfast.models.fingerprint import CURRENT
from holdfast.models.inference import inference
from holdfast.models.inputs import Images, reader
from holdfast.models.onnx import compiled
from holdfast.models.sides import Sided
from holdfast.randomness import generator
from holdfast.spec import ImageSpec

Backend = Literal["torch", "onnx"]
BLOCK = 32
"""Samples whose noise is drawn together."""
ROUNDING = 1e-5
"""The share by which float32 vectors may be longer than they should be: those of length 1, or of a bound given."""
PIXELS = 2**20
"""Pixel values of a batch, at most: more is slower, since they leave the processor's cache."""


def with_rounding(bound: float | None) -> float | None:
    """A bound on vector lengths in exact arithmetic as one that float32 vectors keep too."""
    return None if bound is None else bound * (1 + ROUNDING)


class Smoothed(Sided):
    """The mean of `samples` noisy copies' vectors, where an embedder is wanted; ‖h‖ ≤ `bound`.

    With normalised vectors the bound is 1; for others it must be known and given. Certificates are about
    its expectation, so `sigma`, `bound` and the base model belong to it; `samples` is how well it is estimated.
    With `backend="onnx"` samples go through onnxruntime: h is then the function that it computes.
    """

    card: dict[str, Any] | None = None
    unit_norm = False

    def __init__(
        self,
        base: Embedder | CallableEmbedder,
        sigma: float,
        samples: int,
        *,
        seed: int = 0,
        bound: float | None = None,
        backend: Backend = "torch",
        batch_size: int | None = None,
    ) -> None:
        if backend not in get_args(Backend):
            raise ModelError(f"samples go through {' or '.join(get_args(Backend))}, not '{backend}'")
        if backend == "onnx" and not isinstance(base, Embedder):
            raise ModelError("the backend onnx is for embedders of ours; other models have their own way")
        if base.candidate_side is not None:
            raise ModelError(
                f"smoothing is for embedders whose candidates have the vectors of queries, and those of this one are "
                f"a {base.candidate_side.name}; index without smoothing",
                option="smooth",
            )
        if not (math.isfinite(sigma) and sigma > 0):
            raise ModelError(f"the noise needs a standard deviation above 0, not {sigma}")
        if samples < 1:
            raise ModelError(f"a mean needs at least 1 sample, not {samples}")
        if bound is None and not base.unit_norm and base.longest is None:
            raise ModelError(
                "smoothing needs a bound on the length of the vectors, and these are not normalised; "
                "normalise them (model.unit_norm=true), or give a bound that you can answer for (bound=F)"
            )
        self.base, self.sigma, self.samples, self.seed = base, sigma, samples, seed
        self.origin = base.origin
        self.bound = (base.longest or 1.0 + ROUNDING) if bound is None else float(bound)
        self.backend = backend
        self.batch_size = batch_size or max(BLOCK, min(1024, PIXELS // math.prod(base.spec.shape)))
        self._compiled: tuple[str, Callable[[Tensor], Tensor]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_compiled": None}

    @property
    def spec(self) -> ImageSpec:
        return self.base.spec

    @property
    def dim(self) -> int:
        return self.base.dim

    def sample(
        self, image: Tensor, start: int, stop: int, *, purpose: str = "query", seed: int | None = None
    ) -> Iterator[Tensor]:
        """The vectors of samples `start` to `stop` of one image (C×H×W floats in [0, 1]), in parts.

        Sample i is the same in every call with this seed (the embedder's own if left out) and purpose: a
        gallery's samples are none of a query's, also where the picture is the same. A vector longer than the
        bound is an error: the certificate would be void.
        """
        if stop <= start:
            return
        key = hashlib.blake2b(image.contiguous().float().numpy().tobytes(), digest_size=16).hexdigest()
        own = self.seed if seed is None else seed
        step = max(1, self.batch_size // BLOCK) * BLOCK
        first = start // BLOCK * BLOCK
        embed = self._forward()
        for low in range(first, stop, step):
            deadline.check()
            high = min(low + step, -(-stop // BLOCK) * BLOCK)
            noise = torch.empty((high - low, *image.shape))
            for first_of in range(0, high - low, BLOCK):
                chance = generator(own, "smoothing", purpose, key, (low + first_of) // BLOCK)
                noise[first_of : first_of + BLOCK].normal_(generator=chance)
            part = slice(max(start, low) - low, min(stop, high) - low)
            vectors = embed(noise[part].mul_(self.sigma).add_(image))
            longest = float(vectors.double().norm(dim=1).max())
            if not longest <= self.bound:
                raise ModelError(
                    f"a noisy copy has a vector of length {longest:.8g}, above the bound {self.bound:.8g}; "
                    "give a bound that holds for every image"
                )
            yield vectors

    def embed(self, images: Images) -> Tensor:
        """The mean vectors of `images` (uint8, floats in [0, 1], or an image set)."""
        total, read = reader(images, self.spec.shape)
        means = torch.zeros((total, self.dim), dtype=torch.float64)
        for i in range(total):
            for part in self.sample(read(i, i + 1)[0], 0, self.samples, purpose="gallery"):
                means[i] += part.double().sum(0)
        return (means / self.samples).float()

    def __call__(self, images: Tensor) -> Tensor:
        """The same for float images: what an attack without gradients asks."""
        return self.embed(images)

    def describe(self) -> dict[str, Any]:
        """What makes this embedder what it is, ready for JSON."""
        noise = {
            "sigma": self.sigma,
            "samples": self.samples,
            "seed": self.seed,
            "bound": self.bound,
            "backend": self.backend,
        }
        return {"smoothed": noise, **self.base.describe(), "unit_norm": False}

    def fingerprint(self) -> str:
        """A hash that differs for another base model, noise or seed."""
        return self.fingerprints()[0]

    def fingerprints(self) -> tuple[str, ...]:
        """All hashes that stand for it: by today's rule, then by that of files of before."""
        noise = self.describe()["smoothed"]
        texts = (json.dumps([base, noise], sort_keys=True) for base in self.base.fingerprints())
        today, *before = (hashlib.sha256(text.encode()).hexdigest() for text in texts)
        return CURRENT + today, *before

    def _forward(self) -> Callable[[Tensor], Tensor]:
        """How noisy copies become vectors, by the weights as they are now."""
        if isinstance(self.base, CallableEmbedder):
            return self.base
        if self.backend == "onnx":
            key = self.base.fingerprint()
            if self._compiled is None or self._compiled[0] != key:
                self._compiled = key, compiled(self.base)
            return self._compiled[1]
        return functools.partial(_by_torch, self.base)


def _by_torch(base: Embedder, noisy: Tensor) -> Tensor:
    device, dtype = placement(base)
    with inference(base):
        vectors: Tensor = base(noisy.to(device=device, dtype=dtype)).cpu()
    return vectors


def at_once(embedder: object, images: int) -> int:
    """How many images to embed before the work is written down: fewer where each is embedded many times."""
    return max(1, images // embedder.samples) if isinstance(embedder, Smoothed) else images
