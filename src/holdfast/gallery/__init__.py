"""The searchable gallery: ids, labels, paths, vectors, and the embedder that made them; in a file or another store."""

from __future__ import annotations

from holdfast.gallery.boxes import Boxes
from holdfast.gallery.gallery import Gallery
from holdfast.gallery.opening import (
    create_gallery,
    discard_gallery,
    gallery_exists,
    open_file,
    open_gallery,
    verify_gallery,
)
from holdfast.gallery.stores.base import Promises, TooManyError, VectorStore
from holdfast.gallery.stores.memory import MemoryStore
from holdfast.gallery.stores.sqlite.store import SQLiteStore
from holdfast.gallery.values import EmbedderInfo, GalleryInfo, Hit, Hits, Item

verify_file = verify_gallery

__all__ = [
    "Boxes",
    "EmbedderInfo",
    "Gallery",
    "GalleryInfo",
    "Hit",
    "Hits",
    "Item",
    "MemoryStore",
    "Promises",
    "SQLiteStore",
    "TooManyError",
    "VectorStore",
    "create_gallery",
    "discard_gallery",
    "gallery_exists",
    "open_file",
    "open_gallery",
    "verify_file",
    "verify_gallery",
]
