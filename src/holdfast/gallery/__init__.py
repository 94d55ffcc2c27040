"""The searchable store: ids, labels, paths, vectors, and the embedder that made them; one file, or Milvus."""

from __future__ import annotations

from holdfast.gallery.boxes import Boxes
from holdfast.gallery.gallery import Gallery
from holdfast.gallery.interface import AnyGallery, TooManyError
from holdfast.gallery.opening import (
    create_gallery,
    discard_gallery,
    gallery_exists,
    open_file,
    open_gallery,
    verify_file,
    verify_gallery,
)
from holdfast.gallery.values import EmbedderInfo, GalleryInfo, Hit, Hits, Item

__all__ = [
    "AnyGallery",
    "Boxes",
    "EmbedderInfo",
    "Gallery",
    "GalleryInfo",
    "Hit",
    "Hits",
    "Item",
    "TooManyError",
    "create_gallery",
    "discard_gallery",
    "gallery_exists",
    "open_file",
    "open_gallery",
    "verify_file",
    "verify_gallery",
]
