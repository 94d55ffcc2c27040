"""A learned Mahalanobis metric on feature vectors: what it is, and its file."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load as parse
from safetensors.numpy import save as serialise

from holdfast.errors import DataError, ModelError
from holdfast.files import atomic_write

Array = NDArray[np.float64]
KIND = "holdfast metric 1"


@dataclass(frozen=True)
class Metric:
    """d(x, y) = ‖G(x' − y')‖, x' = (x − low)/span: features are first brought to [0, 1] as in training.

    `about` says how it was learned: the method, its settings, and which features.
    """

    transform: Array
    """G, rank × features."""
    low: Array
    span: Array
    about: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.transform.ndim != 2 or not np.isfinite(self.transform).all():
            raise ModelError("a metric is a matrix of finite numbers")
        if self.low.shape != (self.features,) or self.span.shape != (self.features,):
            raise ModelError(f"a metric of {self.features} features needs a scale for each of them")

    @property
    def features(self) -> int:
        return int(self.transform.shape[1])

    @property
    def matrix(self) -> Array:
        """M = GᵀG, for scaled features."""
        return np.asarray(self.transform.T @ self.transform)

    def scaled(self, vectors: NDArray[Any]) -> Array:
        """Features as the metric takes them, N × features; a picture counts as its pixels."""
        flat = np.asarray(vectors, dtype=np.float64).reshape(len(vectors), -1)
        if flat.shape[1] != self.features:
            raise DataError(f"a metric of {self.features} features does not fit vectors of {flat.shape[1]}")
        return np.asarray((flat - self.low) / self.span)

    def apply(self, vectors: NDArray[Any]) -> Array:
        """Vectors whose Euclidean distance is the metric."""
        return np.asarray(self.scaled(vectors) @ self.transform.T)

    def save(self, path: Path) -> None:
        """Write it; another metric that is there is replaced whole or not at all, any other file never is."""
        if path.exists():
            Metric.load(path)
        tensors = {"transform": self.transform, "low": self.low, "span": self.span}
        content = serialise(tensors, metadata={"kind": KIND, "about": json.dumps(self.about)})
        atomic_write(path, content)

    @classmethod
    def load(cls, path: Path) -> Metric:
        """The metric at `path`."""
        try:
            content = path.read_bytes()
        except OSError as cause:
            raise ModelError(f"could not read the metric {path} ({cause.strerror})") from cause
        try:
            tensors = parse(content)
            size = int.from_bytes(content[:8], "little")
            said = json.loads(content[8 : 8 + size]).get("__metadata__", {})
        except (SafetensorError, ValueError) as cause:
            raise ModelError(f"{path} is not a metric: {cause}") from None
        if said.get("kind") != KIND:
            raise ModelError(f"{path} is not a metric of Holdfast; make one with 'holdfast metric learn'")
        return cls(tensors["transform"], tensors["low"], tensors["span"], json.loads(said["about"]))


def scale_of(vectors: NDArray[Any]) -> tuple[Array, Array]:
    """Lowest value and range of every feature; a constant feature keeps its size."""
    flat = np.asarray(vectors, dtype=np.float64).reshape(len(vectors), -1)
    low, span = flat.min(0), np.ptp(flat, axis=0)
    return low, np.where(span > 0, span, 1.0)
