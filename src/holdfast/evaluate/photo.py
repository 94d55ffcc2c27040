"""One photograph against one gallery: altered for a wish, saved as 8 bits, and measured as a search would see it."""

from __future__ import annotations

import dataclasses
import io
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from holdfast.attacks import Attack, Candidates, Given, Objective, as_access, objective, through_file
from holdfast.data import decode
from holdfast.data.fit import to_image
from holdfast.errors import ConfigError, GalleryError
from holdfast.evaluate.attacked import Settings, distances, unit_shift
from holdfast.gallery import AnyGallery, Hits
from holdfast.gallery.indexing import embedder_info
from holdfast.models import AnyEmbedder
from holdfast.threat import Threat

WANTS = ("raise:ITEM_ID", "lower:ITEM_ID", "misrank", "shift")
JPEG = (95, 75)
Pixels = NDArray[np.uint8]


@dataclass(frozen=True)
class Seen:
    """How a search sees one form of the picture: the followed item's rank and distance, and the vector's shift."""

    form: str
    rank: int
    distance: float
    shift: float


@dataclass(frozen=True, eq=False)
class AlteredPhoto:
    """A picture before and after. `seen` starts with the clean one; `item` is followed through all forms."""

    clean: Pixels
    altered: Pixels
    item: str
    seen: tuple[Seen, ...]
    before: Hits
    after: Hits


def attack_photo(
    gallery: AnyGallery,
    embedder: AnyEmbedder,
    pixels: Pixels,
    want: str,
    threat: Threat,
    *,
    label: str | None = None,
    k: int = 10,
    seed: int = 0,
    settings: Settings | None = None,
) -> AlteredPhoto:
    """Alter a picture within `threat` so that a search in `gallery` goes wrong, as an 8-bit picture of its own size.

    `pixels` are those of `data.read_alterable`: the file's own, which are resized on every way to the model, or for
    bicubic pictures those that the network is given.

    `want` is raise:ID or lower:ID (an item of the gallery), misrank (the first hit is of another class
    than the picture's `label`, by default that of its first hit), or shift (the vector moves as far as
    it can). For the last two the first hit of the clean picture is followed. Ranks are measured on
    the picture's PNG file as a search reads it, then again after JPEG at qualities 95 and 75; a tie counts
    against the item where it is lowered or only followed, and for it where it is raised.
    """
    gallery.check_embedder(embedder_info(embedder))
    settings = (settings or Settings(steps=100)).named(embedder)
    if threat.who == "candidates":
        raise ConfigError(
            f"'holdfast attack' alters a query, not candidates; give NORM:EPS instead of {threat}"
        )
    if threat.eps is None:
        raise ConfigError(f"an attack needs a number for eps, not {threat}; 'auto' is for certificates")
    with gallery.snapshot():
        items = gallery.catalogue()
        vectors = torch.from_numpy(gallery.vectors(list(items)))
        clean = _embedded(embedder, png(pixels))
        before = gallery.nearest(clean.numpy(), k)[0]
        goal, item = _wish(
            want, list(items), [entry.label for entry in items.values()], vectors, before, label
        )
        attack = Attack(goal, settings.make(threat.eps), dataclasses.replace(threat, who="query"))
        model = through_file(as_access(embedder), pixels.shape, embedder.spec)
        found = attack.run(model, torch.from_numpy(np.array(pixels))[None], seed=seed, eight_bit=True)
        altered = found.bytes()[0].numpy()
        after = gallery.nearest(_embedded(embedder, png(altered)).numpy(), k)[0]
    forms = [("clean", png(pixels)), ("PNG", png(altered))]
    forms += [(f"JPEG {quality}", jpeg(altered, quality)) for quality in JPEG]
    seen = []
    for name, content in forms:
        vector = _embedded(embedder, content)
        away = distances(vector, vectors)[0]
        place = list(items).index(item)
        nearer = away < away[place] if want.startswith("raise:") else away <= away[place]
        ahead = int(nearer.sum()) - int(nearer[place])
        seen.append(Seen(name, 1 + ahead, float(away[place]), float(unit_shift(clean, vector)[0])))
    return AlteredPhoto(pixels, altered, item, tuple(seen), before, after)


def png(pixels: Pixels) -> bytes:
    """The picture as a PNG file: the same pixels when it is read again."""
    buffer = io.BytesIO()
    to_image(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def jpeg(pixels: Pixels, quality: int) -> bytes:
    """The picture as a JPEG file."""
    buffer = io.BytesIO()
    to_image(pixels).save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def _embedded(embedder: AnyEmbedder, content: bytes) -> Tensor:
    """The vector of a file, on the way that a search takes."""
    return embedder.embed(decode(content, embedder.spec)[None])


def _wish(
    want: str, ids: list[str], labels: list[str | None], vectors: Tensor, before: Hits, label: str | None
) -> tuple[Objective, str]:
    """What is wanted, and the item whose rank tells."""
    kind, _, id = want.partition(":")
    if kind in ("raise", "lower") and id:
        if id not in ids:
            raise GalleryError(f"the gallery has no item '{id}'; 'holdfast search' shows the ids of hits")
        given = Given(Candidates(vectors), targets=torch.tensor([ids.index(id)]))
        return objective("qa+" if kind == "raise" else "qa-", given), id
    if want == "shift":
        return objective("es", Given()), before.hits[0].id
    if want != "misrank":
        raise ConfigError(f"--want is one of {', '.join(WANTS)}, not '{want}'")
    label = before.hits[0].label if label is None else label
    if label is None:
        raise ConfigError("misrank needs a gallery with labels; index a folder with one folder per class")
    classes = sorted({entry for entry in labels if entry is not None})
    if label not in classes:
        raise ConfigError(f"no item of the gallery is of class '{label}'; known: {', '.join(classes[:20])}")
    # An item without a label is of no class, and so of another one.
    numbers = torch.tensor([-1 if entry is None else classes.index(entry) for entry in labels])
    given = Given(Candidates(vectors, numbers), labels=torch.tensor([classes.index(label)]))
    return objective("gtm", given), before.hits[0].id
