"""What an attacker sees of the model: gradients, vectors, or only lists of hits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.errors import ConfigError, ModelError
from holdfast.models import CandidateSide, Embedder
from holdfast.models.embedder import placement
from holdfast.models.inference import plain_arithmetic
from holdfast.models.inputs import Shape
from holdfast.models.modes import evaluating


class Access(ABC):
    """A model as the attacker meets it. `see` shows one row for each image, without gradient."""

    gradients: bool = False
    lists: bool = False
    shape: Shape | None = None
    """Of the images that can be altered; None: any."""
    device: torch.device = torch.device("cpu")
    dtype: torch.dtype = torch.float32

    @abstractmethod
    def see(self, images: Tensor) -> Tensor:
        """Vectors (B×D floats), or candidate numbers (B×k integers) if `lists`."""

    def embed(self, images: Tensor) -> Tensor:
        """Vectors through which gradients flow."""
        raise ConfigError("this model gives no gradients")

    def of_candidates(self) -> Access:
        """The same model as it embeds candidates."""
        return self

    @contextmanager
    def ready(self) -> Iterator[None]:
        """Everything about the model is as attacks need it inside the block, and as it was afterwards."""
        yield


class WhiteBox(Access):
    """A torch module: in eval mode while it is attacked, and no gradients for its weights."""

    gradients = True

    def __init__(self, module: nn.Module, side: CandidateSide | None = None) -> None:
        self.module, self._side = module, side
        self.device, self.dtype = placement(module)
        self.shape = module.spec.shape if isinstance(module, Embedder) else None

    def see(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            return _vectors(self._through(images), len(images))

    def embed(self, images: Tensor) -> Tensor:
        vectors = self._through(images)
        if not vectors.requires_grad:
            raise ModelError("the embedder passes no gradient on to its images; use nes or spsa")
        return vectors

    def of_candidates(self) -> Access:
        if not isinstance(self.module, Embedder) or self.module.candidate_side is None:
            return self
        return WhiteBox(self.module, self.module.candidate_side)

    def _through(self, images: Tensor) -> Tensor:
        vectors: Tensor = self.module(images)
        return vectors if self._side is None else self._side(vectors)

    @contextmanager
    def ready(self) -> Iterator[None]:
        learning = [weight for weight in self.module.parameters() if weight.requires_grad]
        for weight in learning:
            weight.requires_grad_(False)
        try:
            with evaluating(self.module), plain_arithmetic():
                yield
        finally:
            for weight in learning:
                weight.requires_grad_(True)


class BlackBox(Access):
    """Any callable from images (B×C×H×W floats in [0, 1]) to vectors (B×D, a tensor or an array)."""

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        self.function = function

    def see(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            return _vectors(torch.as_tensor(self.function(images)), len(images))


class TopK(Access):
    """A search that shows only candidate numbers, nearest first (B×k integers; -1 where there is none)."""

    lists = True

    def __init__(self, search: Callable[[Tensor], Any]) -> None:
        self.search = search

    def see(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            listed = torch.as_tensor(self.search(images))
        if listed.ndim != 2 or len(listed) != len(images) or listed.is_floating_point():
            found = f"{str(listed.dtype).removeprefix('torch.')} of {'x'.join(map(str, listed.shape))}"
            raise ModelError(
                f"a search gives {len(images)} x k candidate numbers for {len(images)} images, not {found}"
            )
        return listed.long()


def as_access(model: nn.Module | Callable[[Tensor], Any] | Access) -> Access:
    """Modules are attacked with gradients, other callables by their vectors."""
    if isinstance(model, Access):
        return model
    if isinstance(model, nn.Module):
        return WhiteBox(model)
    if callable(model):
        return BlackBox(model)
    raise ModelError(
        f"an embedder or a callable from images to vectors can be attacked, not {type(model).__name__}"
    )


def _vectors(vectors: Tensor, count: int) -> Tensor:
    if vectors.ndim != 2 or len(vectors) != count or not vectors.is_floating_point():
        found = f"{str(vectors.dtype).removeprefix('torch.')} of {'x'.join(map(str, vectors.shape))}"
        raise ModelError(f"an embedder gives one vector of floats per image ({count} x D), not {found}")
    if not bool(torch.isfinite(vectors).all()):
        where = int((~torch.isfinite(vectors).all(1)).to(torch.uint8).argmax())
        raise ModelError(
            f"the vector of image {where} of a batch of {count} is not finite; "
            "train the embedder again or load other weights"
        )
    return vectors
