"""From a folder of images to a gallery: read, embed, store, a piece at a time, so that it can be stopped."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from holdfast.data import Skipped, decode, open_source
from holdfast.data.sets import folder
from holdfast.data.source import Source
from holdfast.errors import DataError, ImageError
from holdfast.gallery.gallery import Gallery
from holdfast.gallery.values import EmbedderInfo
from holdfast.models import Embedder
from holdfast.progress import bar

PIECE = 256
IN_ARCHIVE = "!"
"""Between the path of a tar and the name of a member, in the stored path of an image."""


@dataclass(frozen=True)
class Indexed:
    """What indexing did to a gallery."""

    added: int
    updated: int
    unchanged: int
    removed: int
    skipped: tuple[Skipped, ...]


@dataclass(frozen=True)
class _Entry:
    name: str
    label: str | None
    content: bytes
    digest: str


def embedder_info(embedder: Embedder, location: Path | None = None) -> EmbedderInfo:
    """What a gallery keeps of the embedder that made its vectors."""
    card = embedder.card if embedder.card is not None else embedder.describe()
    return EmbedderInfo(embedder.fingerprint(), card, None if location is None else str(location.resolve()))


def index_images(embedder: Embedder, images: Path, gallery: Gallery, *, prune: bool = False) -> Indexed:
    """Bring `gallery` up to date with the folder or tar `images`; each piece is committed as it is done.

    An image's id is its path below `images`; its label is its class folder, if it has one. Images
    whose bytes have not changed are not embedded again, so a stopped run goes on where it was. With
    `prune`, items whose image is gone are removed.
    """
    skipped: list[Skipped] = []
    added = updated = unchanged = 0
    with open_source(images) as source:
        labels = _labels(source)
        if not labels:
            raise DataError(f"there are no images in {images}; name a folder or tar of images")
        known = gallery.digests()
        names = list(labels)
        with bar("indexing", len(names)) as advance:
            for first in range(0, len(names), PIECE):
                piece = names[first : first + PIECE]
                entries = list(_read(source, piece, labels, skipped))
                fresh = [entry for entry in entries if known.get(folder.readable(entry.name)) != entry.digest]
                unchanged += len(entries) - len(fresh)
                stored = _store(embedder, gallery, source, fresh, skipped)
                changed = sum(id in known for id in stored)
                updated, added = updated + changed, added + len(stored) - changed
                advance(len(piece), note=f"{len(skipped)} skipped" if skipped else "")
    gone = set(known) - {folder.readable(name) for name in names} if prune else set()
    removed = gallery.remove(gone) if gone else 0
    if not len(gallery):
        raise DataError(
            f"none of the {len(names)} images in {images} could be read (first: {skipped[0].reason})"
        )
    return Indexed(added, updated, unchanged, removed, tuple(skipped))


def stored_image(path: str | None) -> bytes | None:
    """The bytes of an image by its stored path; None where they are no longer there."""
    if path is None:
        return None
    archive, _, member = path.partition(IN_ARCHIVE)
    try:
        if member and Path(archive).is_file():
            with open_source(Path(archive)) as source:
                return source.read(member)
        return Path(path).read_bytes()
    except (OSError, KeyError, DataError):
        return None


def _labels(source: Source) -> dict[str, str | None]:
    """Every image's name in the source, with the class that its folder says, or None."""
    names: dict[str, str | None] = dict.fromkeys(folder.image_names(source))
    listing = folder.read(source)
    if listing.labels is not None:
        for name, label in zip(listing.names, listing.labels, strict=True):
            names[name] = listing.classes[label]
    return names


def _read(
    source: Source, names: Sequence[str], labels: dict[str, str | None], skipped: list[Skipped]
) -> Iterator[_Entry]:
    for name in names:
        try:
            content = source.read(name)
        except OSError as cause:
            skipped.append(Skipped(folder.readable(name), cause.strerror or str(cause)))
            continue
        digest = hashlib.blake2b(content, digest_size=16).hexdigest()
        yield _Entry(name, labels[name], content, digest)


def _store(
    embedder: Embedder, gallery: Gallery, source: Source, entries: Sequence[_Entry], skipped: list[Skipped]
) -> list[str]:
    """Embed and commit one piece; the ids that went in."""
    kept: list[_Entry] = []
    pixels: list[NDArray[np.uint8]] = []
    for entry in entries:
        try:
            pixels.append(decode(entry.content, embedder.spec))
            kept.append(entry)
        except ImageError as cause:
            skipped.append(Skipped(folder.readable(entry.name), str(cause)))
    if not kept:
        return []
    ids = [folder.readable(entry.name) for entry in kept]
    gallery.add(
        ids,
        embedder.embed(np.stack(pixels)).numpy(),
        labels=[entry.label for entry in kept],
        paths=[_stored_path(source, entry.name) for entry in kept],
        digests=[entry.digest for entry in kept],
        replace=True,
    )
    return ids


def _stored_path(source: Source, name: str) -> str:
    if source.is_archive:
        return f"{source.path.resolve()}{IN_ARCHIVE}{name}"
    return folder.readable(str(source.path.resolve() / name))
