"""A model as an attacker meets it who alters the file: its pixels are resized on the way, and gradients flow back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from holdfast.attacks.access import Access
from holdfast.data.fit import luma_weights, weights
from holdfast.models.inputs import Shape
from holdfast.spec import ImageSpec


class Resized(Access):
    """`inner` for pictures of their own `shape`, brought to `spec` by its bilinear filter.

    The same linear map as the decoder's, in float32: what an attack finds is measured again through a file.
    """

    def __init__(self, inner: Access, shape: Shape, spec: ImageSpec) -> None:
        self._inner, self._channels, self._spec = inner, spec.channels, spec
        self.shape: Shape = shape
        self.gradients, self.lists = inner.gradients, inner.lists
        self.device, self.dtype = inner.device, inner.dtype
        _, height, width = shape
        self._rows, self._columns = (
            torch.from_numpy(one.dense()).to(self.device, self.dtype) for one in weights(width, height, spec)
        )
        self._luma = torch.tensor(luma_weights(), device=self.device, dtype=self.dtype)[:, None, None]

    def see(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            return self._inner.see(self._resize(images))

    def embed(self, images: Tensor) -> Tensor:
        return self._inner.embed(self._resize(images))

    def of_candidates(self) -> Access:
        return Resized(self._inner.of_candidates(), self.shape, self._spec)

    @contextmanager
    def ready(self) -> Iterator[None]:
        with self._inner.ready():
            yield

    def _resize(self, images: Tensor) -> Tensor:
        if images.shape[1] == 3 and self._channels == 1:
            images = (images * self._luma).sum(1, keepdim=True)
        small = (self._rows @ images @ self._columns.T).clamp(0, 1)
        return small.expand(-1, self._channels, -1, -1)


def through_file(inner: Access, shape: tuple[int, ...], spec: ImageSpec) -> Access:
    """`inner` for pictures of a file's own shape where claims are of the file; as it is where they are not."""
    channels, height, width = shape
    return Resized(inner, (channels, height, width), spec) if spec.picture == "file" else inner
