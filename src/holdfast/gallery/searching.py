"""The one way of every search: a picture, a gallery with its embedder, and what is to be proved of each hit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pillow
from PIL import ImageOps

from holdfast.data import Picture, decode_picture, fitted, read_picture
from holdfast.data.fit import to_array
from holdfast.data.modes import flatten
from holdfast.errors import ConfigError
from holdfast.gallery.gallery import Gallery
from holdfast.gallery.indexing import embedder_info
from holdfast.gallery.provers import Options, Provers, Query
from holdfast.gallery.values import Hits
from holdfast.models import AnyEmbedder
from holdfast.spec import ImageSpec
from holdfast.threat import Threat

Image = str | Path | bytes | Pillow.Image | NDArray[np.uint8] | NDArray[np.float32] | Picture
"""A picture's path, its file's bytes, a PIL image, or pixels as the network takes them: C×H×W, uint8 or in [0, 1]."""


def search(
    gallery: Gallery,
    embedder: AnyEmbedder,
    image: Image,
    k: int = 10,
    *,
    certify: str | Threat | None = None,
    method: str | None = None,
    keep: bool = False,
    samples: int | None = None,
    rule: str | None = None,
    seed: int | None = None,
    name: str | None = None,
    provers: Provers | None = None,
) -> Hits:
    """The k candidates nearest to a picture; with `certify` each with what no attack within that threat can do to it.

    `certify` is a threat such as "linf:2/255", "candidates:linf:0.01", "linf:auto" or, in a smoothed gallery,
    "l2:0.5"; a smoothed gallery always says how far each hit stays. `method` is how hard bounds try: interval,
    last-layer or crown; with `keep` the gallery keeps the certificate. `samples`, `rule` and `seed` change how noisy
    copies answer. `provers` are the embedder's, where they are at hand: the first proof traces its network.
    An embedder that did not make the gallery is refused.
    """
    gallery.check_embedder(embedder_info(embedder))
    provers = Provers(embedder) if provers is None else provers
    query = _query(image, embedder.spec, name)
    options = Options(method=method, keep=keep, samples=samples, rule=rule, seed=seed)
    threat = Threat.parse(certify) if isinstance(certify, str) else certify or provers.usual
    if threat is not None:
        return certified(gallery, provers, query, k, threat, options)
    if error := provers.foreign(options, gallery.info):
        raise error
    if given := options.given():
        raise ConfigError(f"{', '.join(sorted(given))} are about certificates; say what to certify")
    return gallery.nearest(embedder.embed(query.picture.pixels[None]).numpy(), k, names=[query.name])[0]


def certified(
    gallery: Gallery, provers: Provers, query: Query, k: int, threat: Threat, options: Options
) -> Hits:
    """The k candidates nearest to a query, each with what no attack within `threat` can do to it."""
    prover = provers.prover(threat, options, gallery.info)
    if k < 1:
        raise ConfigError(f"k is at least 1, not {k}")
    with gallery.snapshot():
        count = len(gallery)
    return prover.prove(query, gallery, min(k, count), threat, options) if count else Hits(query.name, ())


def _query(image: Any, spec: ImageSpec, name: str | None) -> Query:
    if isinstance(image, str | Path):
        return Query(read_picture(image, spec), name or str(image))
    return Query(_picture(image, spec), name or "query")


def _picture(image: Any, spec: ImageSpec) -> Picture:
    if isinstance(image, Picture):
        return image
    if isinstance(image, bytes):
        return decode_picture(image, spec)
    if isinstance(image, Pillow.Image):
        return fitted(to_array(flatten(ImageOps.exif_transpose(image), None)), spec)
    if isinstance(image, np.ndarray):
        return Picture(image)
    raise ConfigError(
        f"an image is a path, the bytes of a file, a PIL image or an array, not {type(image).__name__}"
    )
