"""From altered images of candidates to the boxes that a gallery stores, rounding inside."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from holdfast.bounds import Box
from holdfast.certify.certifier import Certifier
from holdfast.gallery.boxes import Boxes
from holdfast.models import to_unit

_BATCH = 128
_UNIT = 1 + 2.0**-10
"""A normalised vector has no coordinate beyond 1; rounding stays far below the rest."""


def stored_boxes(certifier: Certifier, pixels: NDArray[np.uint8], eps: float) -> Boxes:
    """The boxes of the embeddings of candidates whose images are altered within `eps`, as a gallery stores them.

    Where the features may be zero, so that their direction is open, the box of a unit-norm
    embedder is that of all unit vectors.
    """
    parts = []
    for first in range(0, len(pixels), _BATCH):
        box = certifier.candidate_box(to_unit(torch.from_numpy(pixels[first : first + _BATCH])), eps)
        if certifier.unit_norm:
            sure = torch.isfinite(box.radius) & torch.isfinite(box.centre)
            box = Box(torch.where(sure, box.centre, 0.0), torch.where(sure, box.radius, _UNIT))
        parts.append(box)
    whole = [torch.cat(half).numpy() for half in zip(*((b.centre, b.radius) for b in parts), strict=True)]
    return Boxes.around(*whole)
