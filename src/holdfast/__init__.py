"""Holdfast: image search that holds under attack.

import holdfast

embedder = holdfast.load("efficientnet-lite0")      # or a run's folder, or holdfast.wrap(any_torch_module, size=224)
gallery = holdfast.index(embedder, "photos/", "shop.gallery")
for hit in holdfast.search(gallery, embedder, "photo.jpg", k=10).hits:
    print(hit.rank, hit.id, hit.distance)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from holdfast.data import load as load_data
    from holdfast.errors import HoldfastError
    from holdfast.gallery import Gallery, Hit, Hits, open_gallery
    from holdfast.models import Embedder, Foreign
    from holdfast.models.find import find as load
    from holdfast.models.wrap import wrap
    from holdfast.spec import ImageSpec
    from holdfast.workflow import index, search, train

_WHERE = {
    "Embedder": ("holdfast.models", "Embedder"),
    "Foreign": ("holdfast.models", "Foreign"),
    "Gallery": ("holdfast.gallery", "Gallery"),
    "Hit": ("holdfast.gallery", "Hit"),
    "Hits": ("holdfast.gallery", "Hits"),
    "HoldfastError": ("holdfast.errors", "HoldfastError"),
    "ImageSpec": ("holdfast.spec", "ImageSpec"),
    "index": ("holdfast.workflow", "index"),
    "load": ("holdfast.models", "find"),
    "load_data": ("holdfast.data", "load"),
    "open_gallery": ("holdfast.gallery", "open_gallery"),
    "search": ("holdfast.workflow", "search"),
    "train": ("holdfast.workflow", "train"),
    "wrap": ("holdfast.models", "wrap"),
}

__all__ = [
    "Embedder",
    "Foreign",
    "Gallery",
    "Hit",
    "Hits",
    "HoldfastError",
    "ImageSpec",
    "__version__",
    "index",
    "load",
    "load_data",
    "open_gallery",
    "search",
    "train",
    "wrap",
]


_ROOMS = (
    "attacks",
    "bounds",
    "certify",
    "data",
    "evaluate",
    "gallery",
    "metrics",
    "models",
    "report",
    "training",
)


def __getattr__(name: str) -> Any:
    """Names and rooms are imported on first use: `holdfast --help` needs neither torch nor FAISS."""
    from importlib import import_module

    if name in _ROOMS:
        return import_module(f"holdfast.{name}")
    if name not in _WHERE:
        raise AttributeError(f"module 'holdfast' has no attribute '{name}'")
    module, attribute = _WHERE[name]
    return getattr(import_module(module), attribute)
