"""Names of before: `AnyGallery` is `Gallery`, over whatever store."""

from __future__ import annotations

from holdfast.gallery.gallery import Gallery as AnyGallery
from holdfast.gallery.stores.base import ChangedError, TooManyError

__all__ = ["AnyGallery", "ChangedError", "TooManyError"]
