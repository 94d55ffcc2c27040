"""Galleries by their location: a file, or an address in another store (see `stores`)."""

from __future__ import annotations

from holdfast.gallery.gallery import Gallery
from holdfast.gallery.stores import Location, check_file, store_at
from holdfast.gallery.values import EmbedderInfo


def open_gallery(
    location: Location, *, embedder: EmbedderInfo | None = None, readonly: bool = False
) -> Gallery:
    """The gallery at `location`; with `embedder` given, one that another embedder made is refused."""
    return Gallery.open(location, embedder=embedder, readonly=readonly)


def open_file(location: Location, *, readonly: bool = False) -> Gallery:
    """The gallery in the file at `location`, for what only a file has: a cache, a copy, an upgrade."""
    check_file(location)
    return Gallery.open(location, readonly=readonly)


def create_gallery(
    location: Location, *, dim: int, embedder: EmbedderInfo, overwrite: bool = False
) -> Gallery:
    """A new, empty gallery at `location`; an old one is replaced only if `overwrite`."""
    return Gallery.create(location, dim=dim, embedder=embedder, overwrite=overwrite)


def gallery_exists(location: Location) -> bool:
    """Whether something is at `location`: `create_gallery` would not make a new one there."""
    store, place = store_at(location)
    return store.exists(place)


def discard_gallery(location: Location, *, content: bool = False) -> None:
    """Take away an empty gallery, or any with all that it holds if `content`; what is in use stays.

    Not every store can tell what is in use: there a gallery that is filled at this very moment goes too.
    """
    store, place = store_at(location)
    store.discard(place, content=content)


def verify_gallery(location: Location) -> list[str]:
    """What `verify` says of the gallery at `location`, also where it is too damaged to open."""
    store, place = store_at(location)
    return store.problems_at(place)
