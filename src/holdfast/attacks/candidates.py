"""The gallery as an attack sees it: vectors, perhaps labels, and one product for all distances."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from holdfast.errors import DataError


class Candidates:
    """Vectors of all candidates (N×D), their labels if any, and what every distance to them shares.

    Distances do not see a shift: vectors are kept around their mean, so that few digits cancel.
    """

    def __init__(self, vectors: Tensor, labels: Tensor | None = None) -> None:
        if vectors.ndim != 2 or not len(vectors):
            raise DataError(f"candidates are N x D vectors, found {'x'.join(map(str, vectors.shape))}")
        if not bool(torch.isfinite(vectors).all()):
            raise DataError("the candidates' vectors contain NaN or infinity: embed them again")
        if labels is not None and labels.shape != (len(vectors),):
            raise DataError(f"{len(vectors)} candidates need as many labels, found {tuple(labels.shape)}")
        self.vectors = vectors
        self.labels = labels
        self._centre = vectors.mean(0)
        self._moved = vectors - self._centre
        self._norms = self._moved.square().sum(1)

    def __len__(self) -> int:
        return len(self.vectors)

    @property
    def dim(self) -> int:
        return self.vectors.shape[1]

    def like(self, vectors: Tensor) -> Candidates:
        """The same candidates in the float type and on the device of `vectors`, which must fit them."""
        if vectors.shape[1] != self.dim:
            raise DataError(
                f"the embedder gives {vectors.shape[1]} dimensions, the candidates have {self.dim}; "
                "use the embedder that made them"
            )
        if vectors.dtype == self.vectors.dtype and vectors.device == self.vectors.device:
            return self
        labels = None if self.labels is None else self.labels.to(vectors.device)
        return Candidates(self.vectors.to(vectors), labels)

    def distances(self, vectors: Tensor) -> Tensor:
        """Euclidean distances (B×N) of each vector to each candidate; differentiable once."""
        out: Tensor = _Distances.apply(vectors - self._centre, self._moved, self._norms)  # type: ignore[no-untyped-call]
        return out


class _Distances(torch.autograd.Function):
    """One product forward and one backward, each with one pass over the B×N matrix."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor, candidates: Tensor, norms: Tensor) -> Tensor:
        out = torch.addmm(norms, vectors, candidates.T, alpha=-2)
        out += vectors.square().sum(1, keepdim=True)
        out.clamp_(min=0).sqrt_()
        ctx.save_for_backward(vectors, candidates, out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        vectors, candidates, out = ctx.saved_tensors
        # Where two points meet the distance has no direction; 0 is a subgradient.
        weight = torch.where(out > 1e-12, gradient / out, 0.0)
        return vectors * weight.sum(1, keepdim=True) - weight @ candidates, None, None
