"""Attacks on a smoothed search: gradients through the mean of noisy copies (expectation over the noise)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from holdfast.attacks.access import Access, WhiteBox, as_access
from holdfast.attacks.attack import Attack
from holdfast.attacks.candidates import Candidates
from holdfast.attacks.objectives.base import Assessment, Given, Wish
from holdfast.attacks.objectives.ltm import MatchWish, Misrank
from holdfast.attacks.optimisers.pgd import Pgd
from holdfast.errors import ConfigError
from holdfast.models import AnyEmbedder, Embedder, Smoothed
from holdfast.randomness import generator
from holdfast.threat import Threat

COPIES, STEPS = 32, 20


class NoisyBox(Access):
    """The smoothed embedder as an attacker with the base model's gradients meets it.

    The same noise at every step, so that what is descended is one function and the best point is known.
    """

    gradients = True

    def __init__(self, base: Embedder, sigma: float, seed: int, copies: int = COPIES) -> None:
        self._box = WhiteBox(base)
        self.shape, self.device, self.dtype = base.spec.shape, self._box.device, self._box.dtype
        chance = generator(seed, "noisy box")
        self._noise = sigma * torch.randn((copies, *base.spec.shape), generator=chance).to(
            self.device, self.dtype
        )

    def see(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            return self._mean(images)

    def embed(self, images: Tensor) -> Tensor:
        return self._mean(images)

    @contextmanager
    def ready(self) -> Iterator[None]:
        with self._box.ready():
            yield

    def _mean(self, images: Tensor) -> Tensor:
        noisy = (images[:, None] + self._noise).flatten(0, 1)
        vectors: Tensor = self._box.module(noisy)
        return vectors.view(len(images), len(self._noise), -1).mean(1)


@dataclass(frozen=True, eq=False)
class OvertakeWish(MatchWish):
    """min over non-matching x of d(q̃, x) − min over matching x of d(q̃, x): the margin of RetrievalGuard itself."""

    least = -torch.inf

    def assess(self, seen: Tensor) -> Assessment:
        with torch.no_grad():
            distances = self.candidates.distances(seen)
            rival = distances.masked_fill(~self.other, torch.inf).argmin(1)
            match = distances.masked_fill(~self.same, torch.inf).argmin(1)
            score, success = self.ruled(distances)
        return Assessment(self.to(seen, rival) - self.to(seen, match), score, success)


class Overtake(Misrank):
    """Any candidate of another class is to come before all of the right one."""

    name = "overtake"
    wants = "put any candidate of another class first"

    def bind(self, rows: slice, clean: Tensor) -> Wish:
        return OvertakeWish(*self.matching(rows, clean))


class NoisyAttack:
    """Alters queries of a smoothed search within an ℓ2 size, so that another class comes first."""

    def __init__(self, smoothed: Smoothed, steps: int = STEPS) -> None:
        if not isinstance(smoothed.base, Embedder):
            raise ConfigError("attacks on a smoothed search need gradients, which this model does not give")
        self._box = NoisyBox(smoothed.base, smoothed.sigma, smoothed.seed)
        self._optimiser = Pgd(steps=steps)

    def altered(
        self, image: Tensor, eps: float, gallery: NDArray[np.float64], kinds: NDArray[np.int64], kind: int
    ) -> Tensor:
        """The altered image; the image itself where it has no class to lose, or none to lose it to."""
        same = kinds == kind
        if same.all() or not same.any():
            return image
        vectors, labels = torch.from_numpy(gallery).to(self._box.dtype), torch.from_numpy(kinds)
        given = Given(Candidates(vectors, labels), labels=torch.tensor([kind]))
        attack = Attack(Overtake(given), self._optimiser, Threat("l2", eps))
        return attack.run(self._box, image[None], batch_size=1).images[0]


def access_to(embedder: AnyEmbedder) -> Access:
    """An embedder as an attack on its search meets it: a smoothed one by the mean of a few noisy copies."""
    if isinstance(embedder, Smoothed) and isinstance(embedder.base, Embedder):
        return NoisyBox(embedder.base, embedder.sigma, embedder.seed)
    return as_access(embedder)
