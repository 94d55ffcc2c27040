"""A gallery of before, checked against its model, so that what it stores proves something again.

Fingerprints of before do not see a layer's settings, so a gallery's boxes and kept certificates may be of another
function than the model that is at hand. An upgrade looks at every picture that it finds: its vector is embedded
again and kept where it agrees, its boxes are bounded again. What it cannot check keeps its vector, which is just
numbers, and loses its boxes. Kept certificates are proved again from their query's picture, or dropped. All of it is
one transaction: an error, or a kill, leaves the old gallery.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from holdfast.certify.certifier import Certifier
from holdfast.data import decode, open_source
from holdfast.data.decoding import content
from holdfast.data.sets import folder
from holdfast.data.source import Source
from holdfast.errors import GalleryError, HoldfastError, ImageError, ModelError
from holdfast.gallery.bounding import stored_boxes
from holdfast.gallery.boxes import Boxes, named
from holdfast.gallery.certified import certify_picture
from holdfast.gallery.exact import Floats
from holdfast.gallery.gallery import Gallery
from holdfast.gallery.indexing import embedder_info, stored_image
from holdfast.gallery.kept import Kept
from holdfast.gallery.values import EmbedderInfo, Item
from holdfast.models import AnyEmbedder, to_unit
from holdfast.models.smoothed import at_once
from holdfast.progress import bar
from holdfast.threat import Threat

TOLERANCE = 1e-3
"""By how much a vector may differ, relative to its length, and count as the same: machines round differently."""


@dataclass
class Upgraded:
    """What an upgrade found and did."""

    images: int = 0
    agreed: int = 0
    """Whose vector is what the model gives for their picture."""
    embedded: int = 0
    """Whose vector was another, and is now the model's."""
    unchecked: list[str] = field(default_factory=list)
    """Whose picture was not found, or has changed: the vector stays, boxes are dropped."""
    boxes: tuple[float, ...] = ()
    """For which eps every checked image has a new box."""
    dropped: tuple[float, ...] = ()
    """For which eps all boxes were dropped."""
    proved: int = 0
    """How many kept certificates were proved again."""
    forgotten: list[str] = field(default_factory=list)
    """A line for each that was dropped: its query, its threat, and why."""
    current: bool = False
    """Whether nothing was to be done."""


def upgrade(
    gallery: Gallery, embedder: AnyEmbedder, *, images: Path | None = None, location: str | None = None
) -> Upgraded:
    """Check a gallery of before against its embedder, and bring it to today's format and fingerprint.

    Pictures are looked for where they were indexed, and by their content in the folder, tar or bucket `images`.
    `location` is where the embedder is now, if it has moved.
    """
    info = gallery.info
    found = Upgraded(images=info.count, boxes=info.boxes)
    gallery.check_embedder(embedder_info(embedder))
    if info.embedder.current:
        found.current = True
        return found
    certifier = _certifier(embedder) if info.boxes else None
    with _Pictures(images) as pictures, gallery.rewriting() as rewriting:
        check = _Check(embedder, certifier, info.boxes, pictures, found)
        size = at_once(embedder, 256)
        with bar("checking", info.count) as advance:
            for slots, some, vectors in rewriting.pieces():
                for first in range(0, len(slots), size):
                    part = slice(first, first + size)
                    new, boxes = check.piece(some[part], vectors[part])
                    rewriting.put(slots[part], some[part], new, boxes)
                    advance(len(slots[part]))
        if found.embedded and not found.agreed:
            raise GalleryError(
                f"the model gives another vector for every one of {found.embedded} pictures of {gallery.path}, so it "
                "is not the one that made it; name the right one, or index the images again"
            )
        if certifier is None or not found.agreed + found.embedded:
            found.boxes, found.dropped = (), info.boxes
        rewriting.settle(_new_info(embedder, info.embedder, location), found.dropped)
        with rewriting.looking():
            kept = _proved_again(gallery, embedder, rewriting.certificates(), found)
        rewriting.keep_only(kept)
    return found


def _new_info(embedder: AnyEmbedder, old: EmbedderInfo, location: str | None) -> EmbedderInfo:
    """Today's fingerprint and card; what the old card says besides (how it is searched) stays."""
    new = embedder_info(embedder)
    return EmbedderInfo(new.fingerprint, {**old.card, **new.card}, location or old.location)


def _certifier(embedder: AnyEmbedder) -> Certifier | None:
    """None where the model has no bounds."""
    try:
        return Certifier(embedder)
    except ModelError:
        return None


class _Pictures:
    """The pictures of a gallery: where they were, or anywhere in a folder by what they are."""

    def __init__(self, images: Path | None) -> None:
        self._source: Source | None = None if images is None else open_source(images)
        self._names: dict[str, str] = {}

    def __enter__(self) -> _Pictures:
        names = [] if self._source is None else list(folder.image_names(self._source))
        with bar("looking at pictures", len(names)) as advance:
            for name in names:
                assert self._source is not None
                with suppress(ImageError):  # One that cannot be read is none of the gallery's.
                    self._names[_digest(content(self._source, name))] = name
                advance(1)
        return self

    def __exit__(self, *_: object) -> None:
        if self._source is not None:
            self._source.close()

    def of(self, item: Item) -> bytes | None:
        """The bytes of an item's picture, if they are those that were embedded."""
        name = self._names.get(item.digest or "")
        if name is not None and self._source is not None:
            return content(self._source, name)
        found = stored_image(item.path)
        return found if found is not None and _digest(found) == item.digest else None


def _digest(picture: bytes) -> str:
    """As indexing writes it down."""
    return hashlib.blake2b(picture, digest_size=16).hexdigest()


@dataclass
class _Check:
    """Pictures against what a gallery stores of them."""

    embedder: AnyEmbedder
    certifier: Certifier | None
    sizes: Sequence[float]
    pictures: _Pictures
    found: Upgraded

    def piece(self, items: Sequence[Item], vectors: Floats) -> tuple[Floats, dict[float, Boxes]]:
        """The vectors and boxes that these candidates are to have."""
        pixels = {row: seen for row, item in enumerate(items) if (seen := self._seen(item)) is not None}
        rows = np.array(list(pixels), dtype=np.int64)
        self.found.unchecked += [item.id for row, item in enumerate(items) if row not in pixels]
        new = vectors.copy()
        boxes = {eps: _unknown(vectors) for eps in self.sizes if self.certifier is not None}
        if not len(rows):
            return new, boxes
        stack = np.stack(list(pixels.values()))
        again = self.embedder.embed_candidates(stack).numpy()
        agrees = _close(again, vectors[rows])
        for eps, box in boxes.items():
            assert self.certifier is not None
            own = stored_boxes(self.certifier, stack, eps)
            box.centre[rows], box.radius[rows] = own.centre, own.radius
            agrees &= (np.abs(vectors[rows].astype(np.float64) - own.centre) <= own.radius).all(1)
        new[rows[~agrees]] = again[~agrees]
        self.found.agreed += int(agrees.sum())
        self.found.embedded += int((~agrees).sum())
        return new, boxes

    def _seen(self, item: Item) -> NDArray[np.uint8] | None:
        picture = self.pictures.of(item)
        try:
            return None if picture is None else decode(picture, self.embedder.spec)
        except ImageError:
            return None


def _unknown(vectors: Floats) -> Boxes:
    """Boxes of which nothing is known: all there is."""
    return Boxes(np.zeros_like(vectors), np.full_like(vectors, np.inf))


def _close(one: Floats, other: Floats) -> NDArray[np.bool_]:
    """Which vectors are the same but for rounding."""
    length = np.maximum(np.linalg.norm(one, axis=1), np.finfo(np.float32).tiny)
    return np.asarray(np.linalg.norm(one - other, axis=1) <= TOLERANCE * length)


def _proved_again(
    gallery: Gallery, embedder: AnyEmbedder, certificates: Sequence[Kept], found: Upgraded
) -> list[Kept]:
    """The certificates that the picture of their query proves again."""
    proved: list[Kept] = []
    certifier = None
    with bar("certificates", len(certificates)) as advance:
        for one in certificates:
            advance(1)
            try:
                image = _query(one, embedder)
                if Threat.parse(one.threat).who == "candidates":
                    proved.append(certify_picture(gallery, embedder, image, one, None))
                else:
                    certifier = certifier or Certifier(embedder)
                    proved.append(certify_picture(gallery, embedder, image, one, certifier))
            except HoldfastError as cause:
                found.forgotten.append(f"{one.query} ({one.threat}): {cause}")
    found.proved = len(proved)
    return proved


def _query(one: Kept, embedder: AnyEmbedder) -> torch.Tensor:
    """The picture of a kept certificate's query; an error where it is gone, or another by now."""
    picture = stored_image(one.query)
    if picture is None:
        raise GalleryError("its picture is not there")
    image = to_unit(torch.from_numpy(np.array(decode(picture, embedder.spec)))[None])
    if not _close(embedder.embed(image).numpy(), one.embedding[None])[0]:
        raise GalleryError("its picture, or the model, is another by now")
    return image


def sentences(found: Upgraded, path: Path | str) -> list[str]:
    """What an upgrade did, in a few lines."""
    if found.current:
        return [f"{path} is up to date"]
    lost = len(found.unchecked)
    lines = [
        f"{path}: {found.images:,} images; {found.agreed:,} agree with the model, {found.embedded:,} were embedded "
        f"anew, {lost:,} could not be checked"
    ]
    if lost:
        lines.append(
            f"not checked (picture gone or changed): {', '.join(found.unchecked[:3])}" + " …" * (lost > 3)
        )
    if found.boxes:
        some = f"; nothing is known of the {lost:,} that were not checked" if lost else ""
        lines.append(f"boxes for {named(*found.boxes)} were made again{some}")
    if found.dropped:
        lines.append(f"boxes for {named(*found.dropped)} were dropped: they could not be checked")
    if found.proved or found.forgotten:
        lines.append(f"kept certificates: {found.proved:,} proved again, {len(found.forgotten):,} dropped")
        lines += [f"  {line}" for line in found.forgotten]
    return lines
