"""Galleries in Milvus: a server for large ones, a local file of milvus-lite for small ones."""

from __future__ import annotations

from holdfast.gallery.milvus.address import Address, is_milvus, parse
from holdfast.gallery.milvus.gallery import MilvusGallery
from holdfast.gallery.milvus.making import discard, exists

__all__ = ["Address", "MilvusGallery", "discard", "exists", "is_milvus", "parse"]
