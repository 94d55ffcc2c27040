"""Where galleries live: the registry of stores, and the one place that reads addresses."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

from holdfast.errors import GalleryError, unknown_name
from holdfast.gallery.stores.base import NotPromisedError, VectorStore

STORES: dict[str, str] = {
    "sqlite": "holdfast.gallery.stores.sqlite.store:SQLiteStore",
    "milvus": "holdfast.gallery.stores.milvus.store:MilvusStore",
    "milvus-lite": "holdfast.gallery.stores.milvus.store:MilvusLiteStore",
    "memory": "holdfast.gallery.stores.memory:MemoryStore",
}
"""By the scheme of their addresses (a path has none: it is a file of `sqlite`), the class of each store.

A class is named, not imported: a store may need a library that is not there.
"""

Location = str | Path

_SCHEME = re.compile(r"([a-z][a-z0-9+-]+):(//)?")


def scheme_of(location: Location, known: Mapping[str, str] = STORES) -> str:
    """The scheme of an address; `sqlite` for a path. One with "://" that is unknown is refused."""
    found = _SCHEME.match(str(location))
    if found is None or (found[1] not in known and not found[2]):
        return "sqlite"
    if found[1] not in known:
        raise GalleryError(unknown_name("store", found[1], known))
    return found[1]


def store_at(location: Location) -> tuple[type[VectorStore], Location]:
    """The store of an address, and the address as the store reads it."""
    scheme = scheme_of(location)
    module, _, name = STORES[scheme].partition(":")
    found: type[VectorStore] = getattr(import_module(module), name)
    if scheme == "sqlite":
        return found, Path(location)
    text = str(location)
    if isinstance(location, Path):  # It keeps one of two slashes.
        text = re.sub(rf"^{scheme}:/(?!/)", f"{scheme}://", text)
    return found, text


def check_file(location: Location, advice: str = "name a gallery's file") -> None:
    """Refuse a gallery that is no file, for what only a file has."""
    promises = store_at(location)[0].promises
    if not promises.files:
        raise NotPromisedError(f"{location} is in {promises.name}, which keeps its own files; {advice}")
