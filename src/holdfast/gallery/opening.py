"""The right gallery for a location: a file, or an address in Milvus (milvus://…, milvus-lite:…)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.errors import GalleryError
from holdfast.gallery import cache, check, database
from holdfast.gallery.creating import discard_store
from holdfast.gallery.gallery import WAIT, Gallery
from holdfast.gallery.interface import AnyGallery
from holdfast.gallery.milvus.address import SERVER, is_milvus
from holdfast.gallery.store import opened
from holdfast.gallery.values import EmbedderInfo

if TYPE_CHECKING:
    from holdfast.gallery.milvus.gallery import MilvusGallery

Location = str | Path


def open_gallery(
    location: Location, *, embedder: EmbedderInfo | None = None, readonly: bool = False
) -> AnyGallery:
    """The gallery at `location`; with `embedder` given, one that another embedder made is refused."""
    if is_milvus(location):
        return _milvus().open(_address(location), embedder=embedder, readonly=readonly)
    return Gallery.open(location, embedder=embedder, readonly=readonly)


def open_file(location: Location, *, readonly: bool = False) -> Gallery:
    """The gallery in the file at `location`, for what only a file has: a cache, a copy."""
    if is_milvus(location):
        raise GalleryError(
            f"{location} is in Milvus, which keeps and copies its own files; name a gallery's file"
        )
    return Gallery.open(location, readonly=readonly)


def create_gallery(
    location: Location, *, dim: int, embedder: EmbedderInfo, overwrite: bool = False
) -> AnyGallery:
    """A new, empty gallery at `location`; an old one is replaced only if `overwrite`."""
    if is_milvus(location):
        return _milvus().create(_address(location), dim=dim, embedder=embedder, overwrite=overwrite)
    return Gallery.create(location, dim=dim, embedder=embedder, overwrite=overwrite)


def gallery_exists(location: Location) -> bool:
    """Whether something is at `location`: `create_gallery` would not make a new one there."""
    if is_milvus(location):
        from holdfast.gallery.milvus import exists

        return exists(_address(location))
    return Path(location).exists()


def discard_gallery(location: Location, *, content: bool = False) -> None:
    """Take away an empty gallery, or any with all that it holds if `content`; what is in use stays.

    Of Milvus nobody can be told to wait: a gallery there that is filled at this very moment goes too.
    """
    if not is_milvus(location):
        discard_store(Path(location), content=content)
        return
    from holdfast.gallery.milvus import discard

    if not content:
        with open_gallery(location, readonly=True) as gallery:
            if len(gallery):
                return
    discard(_address(location))


def verify_file(path: str | Path) -> list[str]:
    """What `Gallery.verify` says of the file at `path`, also where it is too damaged to open."""
    try:
        with opened(Path(path), readonly=True, wait=WAIT) as (connection, _):
            found = check.problems(connection) or list(cache.problems(Path(path), connection))
            connection.close()
            return found
    except GalleryError as cause:
        if isinstance(cause.__cause__, database.FAULTS):
            return [str(cause)]
        raise


def verify_gallery(location: Location) -> list[str]:
    """What `verify` says of the gallery at `location`, also where a file is too damaged to open."""
    if not is_milvus(location):
        return verify_file(location)
    with open_gallery(location, readonly=True) as gallery:
        return gallery.verify()


def _milvus() -> type[MilvusGallery]:
    from holdfast.gallery.milvus import MilvusGallery

    return MilvusGallery


def _address(location: Location) -> str:
    text = str(location)
    if isinstance(location, Path) and not text.startswith(SERVER) and text.startswith("milvus:/"):
        return SERVER + text.removeprefix("milvus:/")  # A Path keeps one of two slashes.
    return text
