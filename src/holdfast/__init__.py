"""Holdfast: image search that holds under attack.

import holdfast as hf

model = hf.load("efficientnet-lite0")                # or a run's folder, or hf.wrap(any_torch_module, size=224)
gallery = hf.index(model, "photos/", "shop.gallery")
gallery = hf.open("shop.gallery")                    # with the model that made it
hits = gallery.search("photo.jpg", k=10, certify="linf:2/255")
hits[0].certificate.sentence()
gallery.attack("photo.jpg", goal="push-out", threat="linf:8/255").save("altered.png")
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from holdfast.api import attack, certify, evaluate, index, load, open, report, train
    from holdfast.certificate import Certificate, Radius, RankInterval, Verdict
    from holdfast.data import load as load_data
    from holdfast.errors import HoldfastError
    from holdfast.gallery import Gallery, Hit, Hits
    from holdfast.models import CallableEmbedder, Embedder
    from holdfast.models.wrap import wrap
    from holdfast.spec import ImageSpec
    from holdfast.threat import Threat

_WHERE = {
    "CallableEmbedder": "holdfast.models",
    "Certificate": "holdfast.certificate",
    "Embedder": "holdfast.models",
    "Gallery": "holdfast.gallery",
    "Hit": "holdfast.gallery",
    "Hits": "holdfast.gallery",
    "HoldfastError": "holdfast.errors",
    "ImageSpec": "holdfast.spec",
    "Radius": "holdfast.certificate",
    "RankInterval": "holdfast.certificate",
    "Threat": "holdfast.threat",
    "Verdict": "holdfast.certificate",
    "attack": "holdfast.api",
    "certify": "holdfast.api",
    "evaluate": "holdfast.api",
    "index": "holdfast.api",
    "load": "holdfast.api",
    "load_data": "holdfast.data:load",
    "open": "holdfast.api",
    "report": "holdfast.api",
    "train": "holdfast.api",
    "wrap": "holdfast.models.wrap",
}
"""By public name, where it is; with its name there, where that is another."""

__all__ = [
    "CallableEmbedder",
    "Certificate",
    "Embedder",
    "Gallery",
    "Hit",
    "Hits",
    "HoldfastError",
    "ImageSpec",
    "Radius",
    "RankInterval",
    "Threat",
    "Verdict",
    "__version__",
    "attack",
    "certify",
    "evaluate",
    "index",
    "load",
    "load_data",
    "open",
    "report",
    "train",
    "wrap",
]


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    """Names are imported on first use: `holdfast --help` needs neither torch nor FAISS."""
    from importlib import import_module

    if name not in _WHERE:
        raise AttributeError(f"module 'holdfast' has no attribute '{name}'")
    module, _, attribute = _WHERE[name].partition(":")
    return getattr(import_module(module), attribute or name)
