"""Resampling as a linear map: the weights of Pillow's triangle filter, and how far they can stretch a change.

A picture is resized by one matrix for its rows and one for its columns. Every weight is 0 or more and each output's
weights sum to one, so in ℓ∞ no change grows. In ℓ2 a matrix A changes lengths by at most √(‖A‖₁ ‖A‖∞), which is the
root of its largest column sum here: below 1 where a picture shrinks, above 1 where it is enlarged.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]
_SLACK = 1 + 2.0**-20
"""For the rounding of the weights, here and in Pillow: far more than their sums err by."""


@dataclass(frozen=True, eq=False)
class Weights:
    """A matrix of `outputs` × `inputs`: row i has the values `values[starts[i]:starts[i + 1]]` from `first[i]` on."""

    inputs: int
    first: NDArray[np.int64]
    starts: NDArray[np.int64]
    values: Doubles

    @property
    def columns(self) -> NDArray[np.int64]:
        """The input that each value belongs to."""
        counts = np.diff(self.starts)
        return np.arange(len(self.values)) - np.repeat(self.starts[:-1] - self.first, counts)

    @property
    def stretch(self) -> float:
        """An upper bound of its spectral norm."""
        sums = np.bincount(self.columns, weights=self.values, minlength=self.inputs)
        return math.sqrt(float(sums.max())) * _SLACK

    def dense(self) -> Doubles:
        """The matrix itself."""
        found = np.zeros((len(self.first), self.inputs))
        found[np.repeat(np.arange(len(self.first)), np.diff(self.starts)), self.columns] = self.values
        return found


def triangle(inputs: int, outputs: int, low: float, high: float) -> Weights:
    """Pillow's weights (BILINEAR) for `outputs` samples of the part [low, high] of `inputs` samples."""
    if (low, high) == (0, outputs) and inputs == outputs:
        same = np.arange(outputs)
        return Weights(inputs, same, np.arange(outputs + 1), np.ones(outputs))
    # Pillow takes the part in float32.
    begin, end = np.float32(low), np.float32(high)
    scale = float(end - begin) / outputs
    width = max(scale, 1.0)
    centres = float(begin) + (np.arange(outputs) + 0.5) * scale
    first = np.maximum((centres - width + 0.5).astype(np.int64), 0)
    counts = np.minimum((centres + width + 0.5).astype(np.int64), inputs) - first
    starts = np.concatenate([[0], np.cumsum(counts)])
    places = np.arange(starts[-1]) - np.repeat(starts[:-1] - first, counts)
    away = np.abs(places + 0.5 - np.repeat(centres, counts)) / width
    values = np.maximum(1.0 - away, 0.0)
    values /= np.repeat(np.add.reduceat(values, starts[:-1]), counts)
    return Weights(inputs, first, starts, values)
