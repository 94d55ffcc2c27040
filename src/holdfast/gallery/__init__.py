"""The searchable store: one file with ids, labels, paths, vectors, and the embedder that made them."""

from __future__ import annotations

from holdfast.gallery.boxes import Boxes
from holdfast.gallery.gallery import Gallery, verify_file
from holdfast.gallery.values import EmbedderInfo, GalleryInfo, Hit, Hits, Item

__all__ = ["Boxes", "EmbedderInfo", "Gallery", "GalleryInfo", "Hit", "Hits", "Item", "verify_file"]
