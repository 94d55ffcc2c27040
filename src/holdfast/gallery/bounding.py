"""From altered images to boxes: what an embedder can output within linf:eps, clipped, rounding inside."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from holdfast.bounds import Box
from holdfast.certify.certifier import Certifier
from holdfast.errors import HoldfastError
from holdfast.gallery.boxes import Boxes
from holdfast.models import AnyEmbedder, to_unit

_BATCH = 128
_UNIT = 1 + 2.0**-10
"""A normalised vector has no coordinate beyond 1; rounding stays far below the rest."""


class Bounder:
    """An embedder as its bounds see it; an operation without bounds is refused here, before any work."""

    def __init__(self, embedder: AnyEmbedder) -> None:
        self.certifier = Certifier(embedder)
        self.unit_norm = embedder.unit_norm

    def features(self, images: Tensor, eps: float | Tensor) -> Box:
        """The boxes of the features before normalisation, for images in [0, 1]; float64.

        They hold what float32 inference computes for every image within `eps` inside [0, 1].
        """
        return self.certifier.box(images, eps)

    def tight_features(self, images: Tensor, eps: float | Tensor) -> Box:
        """The same, tighter and dearer: by linear bounds."""
        return self.certifier.linear_box(images, eps)

    def boxes(self, pixels: NDArray[np.uint8], eps: float) -> Boxes:
        """The boxes of the embeddings of candidates, as a gallery stores them.

        Where the features may be zero, so that their direction is open, the box of a unit-norm
        embedder is that of all unit vectors.
        """
        parts = []
        for first in range(0, len(pixels), _BATCH):
            box = self.certifier.candidate_box(to_unit(torch.from_numpy(pixels[first : first + _BATCH])), eps)
            if self.unit_norm:
                sure = torch.isfinite(box.radius) & torch.isfinite(box.centre)
                box = Box(torch.where(sure, box.centre, 0.0), torch.where(sure, box.radius, _UNIT))
            parts.append(box)
        whole = [torch.cat(half).numpy() for half in zip(*((b.centre, b.radius) for b in parts), strict=True)]
        return Boxes.around(*whole)


def bounder_of(embedder: AnyEmbedder) -> Bounder | None:
    """The embedder as its bounds see it; None where an operation has no bounds."""
    try:
        return Bounder(embedder)
    except HoldfastError:
        return None
