"""A smoothed search whose answers are known: points on a circle, and images that only turn it.

h(x) = (cos⟨a, x⟩, sin⟨a, x⟩) with ‖a‖ = 1: an attack moves the angle by ⟨a, δ⟩ and by nothing else, and the angle of
a noisy copy is normal around that of the image with deviation σ.
"""

from __future__ import annotations

import numpy as np
import torch

from holdfast.certify.smoothing import Smoothing
from holdfast.data import Picture
from holdfast.gallery import Gallery
from holdfast.gallery.indexing import embedder_info
from holdfast.gallery.provers import Query
from holdfast.gallery.provers.sampling import searched
from holdfast.gallery.provers.sampling import smoothed_search as search_by_samples
from holdfast.gallery.smoothed import smoothed, smoothed_info
from holdfast.models import Foreign
from holdfast.threat import Threat

HOW = Smoothing(sigma=0.25, n=600, alpha=0.05, first=60, gallery=8)
SLOPE = torch.full((16,), 0.25)
"""Of length 1."""


def circle(angles: torch.Tensor) -> torch.Tensor:
    return torch.stack([angles.cos(), angles.sin()], 1)


def turning() -> Foreign:
    return Foreign(lambda images: circle(images.flatten(1) @ SLOPE), (1, 4, 4), unit_norm=True)


def make(path, embedder, angles, labels=None, how=HOW):
    """A gallery of points on the circle, as if they were smoothed vectors."""
    wrapped = smoothed(embedder, how)
    info = smoothed_info(wrapped, embedder_info(wrapped), how)
    gallery = Gallery.create(path, dim=2, embedder=info)
    gallery.add(
        [f"c{i:03}" for i in range(len(angles))], circle(torch.as_tensor(angles)).numpy(), labels=labels
    )
    return gallery, wrapped


def pixels(level: float) -> np.ndarray:
    """An image whose angle is 4·level, as far as 8 bits can say it."""
    return np.full((1, 4, 4), round(level * 255), dtype=np.uint8)


def smoothed_search(
    gallery, embedder, pixels, k, name="query", *, how=None, eps=None, seed=None, stretch=None
):
    """A smoothed search by numbers; `how` is the gallery's own unless given."""
    how = searched(gallery.info) if how is None else how
    query = Query(Picture(pixels, stretch), name)
    return search_by_samples(gallery, embedder, query, k, how, threat=Threat("l2", eps), seed=seed)
