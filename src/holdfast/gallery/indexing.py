"""From a folder of images to a gallery: read, embed, store, a piece at a time, so that it can be stopped."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from holdfast.data import Labels, Skipped, classes_line, decode, open_source
from holdfast.data.bucket import is_bucket, object_exists, read_object
from holdfast.data.decoding import content, workers
from holdfast.data.sets import folder
from holdfast.data.source import IN_ARCHIVE, Source, is_gone, unreadable
from holdfast.errors import ConfigError, DataError, GalleryError, ImageError
from holdfast.gallery.bounding import stored_boxes
from holdfast.gallery.boxes import Boxes, named
from holdfast.gallery.gallery import Gallery
from holdfast.gallery.given import some
from holdfast.gallery.kept import Rechecked
from holdfast.gallery.values import EmbedderInfo, Item
from holdfast.models import AnyEmbedder, Smoothed, under_metric
from holdfast.models.smoothed import at_once
from holdfast.progress import bar
from holdfast.proofs.certifier import Certifier
from holdfast.spec import ImageSpec

PIECE = 256
MAX_REMOVED = 0.1
"""Share of a gallery's images that one run may remove, unless it is told otherwise."""


@dataclass
class Indexed:
    """What indexing did to a gallery."""

    added: int = 0
    updated: int = 0
    unchanged: int = 0
    removed: int = 0
    skipped: list[Skipped] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)
    """The labels of the images that were indexed, each once."""
    boxes: tuple[float, ...] = ()
    """For which eps every candidate now has a box."""
    certificates: Rechecked = field(default_factory=Rechecked)
    """What became of the certificates that the gallery keeps."""
    cache: str = ""
    """What became of the cache beside the gallery, in a line; nothing where none is worth it."""


@dataclass(frozen=True)
class _Read:
    """One image of the source: what the gallery should say of it, and its pixels if they are new."""

    item: Item
    pixels: NDArray[np.uint8] | None = None
    problem: str | None = None
    damaged: bool = False
    """Its bytes were read, and are no image."""
    gone: bool = False
    """It is listed, but not there: a link to nothing, or a file removed since."""


def embedder_info(embedder: AnyEmbedder) -> EmbedderInfo:
    """What a gallery keeps of the embedder that made its vectors."""
    card = embedder.card if embedder.card is not None else embedder.describe()
    today, *before = embedder.fingerprints()
    return EmbedderInfo(today, card, embedder.origin, tuple(before))


def as_stored(embedder: AnyEmbedder, info: EmbedderInfo) -> AnyEmbedder:
    """The embedder with the filter and the metric of a gallery's vectors; a gallery of before has bicubic ones."""
    kept = info.card.get("metric")
    if isinstance(embedder, Smoothed):
        if kept is not None:
            raise GalleryError(
                "a metric goes behind the embedder that is smoothed, not behind the smoothed one"
            )
        return embedder
    if "spec" in info.card:
        embedder = embedder.resampled(info.resample)
    return embedder if kept is None else under_metric(embedder, kept)


def index_images(
    embedder: AnyEmbedder,
    images: Path | str,
    gallery: Gallery,
    *,
    prefix: str = "",
    labels: Labels = "deepest",
    prune: bool = False,
    max_removed: float = MAX_REMOVED,
    boxes: float | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Indexed:
    """Bring `gallery` up to date with the folder, tar or bucket `images`; each piece is committed as it is done.

    An image's id is `prefix` and its path below `images`; its label is its class folder, if it has one: the
    deepest, or with `labels="top"` the one at the top. Images whose bytes have not changed are not embedded
    again, so a stopped run goes on where it was. An id that stands for another image that still exists elsewhere
    is refused.

    An image whose bytes were read and no longer decode leaves the gallery. With `prune`, so does every item
    whose file is gone. They leave together at the end: a disk, mount or bucket that fails before ends the run
    with nothing removed, and so does a run that would remove more than the share `max_removed` (a single
    image may always leave).

    New images get boxes for every eps that the gallery has boxes for. With `boxes` another eps is
    added, for all images at once: each must still be readable and unchanged. `say` is told of the classes before the
    work begins.
    """
    if not 0 <= max_removed <= 1:
        raise ConfigError(f"max_removed is a share between 0 and 1, not {max_removed}")
    done = Indexed()
    leaving: dict[str, str] = {}
    maker = _Maker(embedder, gallery.info.boxes, boxes)
    with open_source(images) as source:
        classes = _labels(source, labels)
        if not classes:
            raise DataError(f"there are no images in {images}; name a folder, tar or bucket of images")
        known = gallery.catalogue()
        wanted = [
            Item(prefix + folder.readable(name), label, folder.readable(source.place(name)))
            for name, label in classes.items()
        ]
        _check_ids(wanted, known)
        here = {item.id for item in wanted}
        others = [item for item in known.values() if item.id not in here]
        if prune:
            leaving = {item.id: "its file is gone" for item in others if not _exists(item.path, source)}
        if boxes is not None and boxes not in maker.sizes:
            # Said before anything is written.
            _check_found(boxes, [i.id for i in others if i.id not in leaving and _unchanged(i) is None])
            if not known:
                _add_boxes(maker, gallery, boxes, embedder.spec)
                maker.sizes = gallery.info.boxes
        names = list(classes)
        done.classes = sorted({label for label in classes.values() if label is not None})
        say(f"{len(classes):,} images, {classes_line(done.classes)}")
        with bar("indexing", len(names)) as advance, ThreadPoolExecutor(workers()) as pool:
            size = at_once(embedder, PIECE)
            for first in range(0, len(names), size):
                part = slice(first, first + size)
                piece = list(
                    pool.map(
                        lambda name, item: _read(source, name, item, known.get(item.id), embedder.spec),
                        names[part],
                        wanted[part],
                    )
                )
                _store(maker, gallery, piece, known, done)
                leaving |= {
                    read.item.id: str(read.problem)
                    for read in piece
                    if read.item.id in known and (read.damaged or (prune and read.gone))
                }
                advance(len(names[part]), note=f"{len(done.skipped)} skipped" if done.skipped else "")
    if len(gallery) <= len(leaving):
        reason = done.skipped[0].reason if done.skipped else "nothing there"
        raise DataError(f"none of the {len(names)} images in {images} could be read (first: {reason})")
    if leaving:
        _check_share(leaving, len(known), max_removed)
        done.removed = gallery.remove(set(leaving))
    if boxes is not None and boxes not in maker.sizes:
        _add_boxes(maker, gallery, boxes, embedder.spec)
    done.boxes = gallery.info.boxes
    return done


def stored_image(path: str | None) -> bytes | None:
    """The bytes of an image by its stored path; None where they are no longer there."""
    if path is None:
        return None
    try:
        return _stored(path)
    except (OSError, KeyError, DataError):
        return None


def _stored(path: str) -> bytes:
    archive, _, member = path.partition(IN_ARCHIVE)
    if is_bucket(path):
        return read_object(path)
    return _opened(Path(archive)).read(member) if member else Path(path).read_bytes()


@lru_cache(maxsize=4)
def _opened(path: Path) -> Source:
    """A tar that stays open: reading its table of contents takes a second for ten thousand members."""
    return open_source(path)


def _labels(source: Source, which: Labels) -> dict[str, str | None]:
    """Every image's name in the source, with the class that its folder says, or None."""
    names: dict[str, str | None] = dict.fromkeys(folder.image_names(source))
    listing = folder.read(source, which)
    if listing.labels is not None:
        for name, label in zip(listing.names, listing.labels, strict=True):
            names[name] = listing.classes[label]
    return names


def _check_ids(wanted: Sequence[Item], known: dict[str, Item]) -> None:
    for item in wanted:
        old = known.get(item.id)
        if old is not None and old.path != item.path and _exists(old.path, None):
            raise GalleryError(
                f"the gallery has another '{item.id}' already, from {old.path}; "
                "give the ids of this folder a prefix",
                option="prefix",
            )


def _exists(path: str | None, source: Source | None) -> bool:
    """Whether a stored image is still there; one of the tar or bucket being indexed is not, if it is not listed."""
    if path is None:
        return True
    if source is not None and source.covers(path):
        return False
    if is_bucket(path):
        return object_exists(path)
    try:
        os.stat(path.partition(IN_ARCHIVE)[0])  # noqa: PTH116 - Path.exists hides some failures.
    except OSError as cause:
        if is_gone(cause):
            return False
        raise unreadable(path, cause) from cause
    return True


def _read(source: Source, name: str, item: Item, old: Item | None, spec: ImageSpec) -> _Read:
    try:
        found = content(source, name)
        item = Item(item.id, item.label, item.path, _digest(found))
        if old is not None and old.digest == item.digest:
            return _Read(item)
        return _Read(item, decode(found, spec))
    except ImageError as cause:
        why = cause.__cause__
        # Too little memory, or a library that could not be loaded, says nothing about the bytes.
        ours = isinstance(why, MemoryError) or (isinstance(why, OSError) and why.errno is not None)
        gone = isinstance(why, OSError) and is_gone(why)
        return _Read(item, problem=str(cause), damaged=not ours, gone=gone)
    except DataError as cause:
        raise DataError(f"{cause}; nothing was removed from the gallery") from cause


def _check_share(leaving: dict[str, str], known: int, most: float) -> None:
    """Refuse to remove so much that the disk, not the pictures, must have changed."""
    if len(leaving) <= max(1, most * known):
        return
    first, reason = next(iter(leaving.items()))
    enough = math.ceil(100 * len(leaving) / known) / 100
    raise GalleryError(
        f"{len(leaving):,} of {known:,} images would leave the gallery (first: {first}: {reason}), more than "
        f"{most:.0%}; nothing was removed: check that the disk is whole, then allow it",
        option=f"max_removed {enough:g}",
    )


class _Maker:
    """From pixels to what a gallery stores of them: vectors, and boxes for each of its sizes."""

    def __init__(self, embedder: AnyEmbedder, sizes: Sequence[float], more: float | None) -> None:
        self.sizes = sizes
        self._embedder = embedder
        self._certifier = Certifier(embedder) if sizes or more is not None else None

    def vectors(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        return self._embedder.embed_candidates(pixels).numpy()

    def boxes(self, pixels: NDArray[np.uint8], sizes: Sequence[float]) -> dict[float, Boxes]:
        return {
            eps: stored_boxes(self._certifier, pixels, eps) for eps in sizes if self._certifier is not None
        }


def _add_boxes(maker: _Maker, gallery: Gallery, eps: float, spec: ImageSpec) -> None:
    """Boxes for all images that a gallery holds already, from the files that it was made of."""

    def make(items: list[Item], vectors: NDArray[np.float32]) -> Boxes:
        found = [_unchanged(item) for item in items]
        _check_found(eps, [item.id for item, content in zip(items, found, strict=True) if content is None])
        advance(len(items))
        pixels = np.stack([decode(content, spec) for content in found if content is not None])
        return maker.boxes(pixels, [eps])[eps]

    with bar("boxes", len(gallery)) as advance:
        gallery.add_boxes(eps, make)


def _check_found(eps: float, lost: Sequence[str]) -> None:
    if lost:
        raise GalleryError(
            f"boxes for {named(eps)} need every image of the gallery; gone or changed since: {some(lost)}; "
            "index their folder again, or remove them",
            option="prune",
        )


def _unchanged(item: Item) -> bytes | None:
    """The bytes of a stored image, if they are still those that were embedded."""
    if item.path is None or not _exists(item.path, None):
        return None
    try:
        found = _stored(item.path)
    except KeyError:
        return None
    except OSError as cause:
        raise unreadable(item.path, cause) from cause
    return found if _digest(found) == item.digest else None


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _store(
    maker: _Maker, gallery: Gallery, piece: Sequence[_Read], known: dict[str, Item], done: Indexed
) -> None:
    """Embed and commit one piece; only what has changed is written."""
    done.skipped += [Skipped(read.item.id, read.problem) for read in piece if read.problem is not None]

    fresh = [read for read in piece if read.pixels is not None]
    if fresh:
        pixels = np.stack([read.pixels for read in fresh if read.pixels is not None])
        items = [read.item for read in fresh]
        gallery.add(
            [item.id for item in items],
            maker.vectors(pixels),
            labels=[item.label for item in items],
            paths=[item.path for item in items],
            digests=[item.digest for item in items],
            boxes=maker.boxes(pixels, maker.sizes),
            replace=True,
        )
    kept = [read.item for read in piece if read.pixels is None and read.problem is None]
    moved = [item for item in kept if item != known[item.id]]
    if moved:
        gallery.describe(moved)
    updated = sum(read.item.id in known for read in fresh) + len(moved)
    done.updated += updated
    done.added += len(fresh) + len(moved) - updated
    done.unchanged += len(kept) - len(moved)
