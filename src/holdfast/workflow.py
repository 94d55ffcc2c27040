"""The whole path in single calls: what the command line does, for Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.certify.smoothing import Smoothing
from holdfast.data import Labels, read_image
from holdfast.errors import GalleryError, HoldfastError, RunError, StorageError
from holdfast.gallery import (
    AnyGallery,
    Gallery,
    Hits,
    create_gallery,
    discard_gallery,
    gallery_exists,
    open_gallery,
)
from holdfast.gallery.indexing import MAX_REMOVED, Indexed, as_stored, embedder_info, index_images
from holdfast.gallery.recheck import recheck
from holdfast.gallery.smoothed import smoothed, smoothed_info, smoothed_search, stored_smoothing
from holdfast.gallery.values import EmbedderInfo
from holdfast.models import AnyEmbedder, Smoothed
from holdfast.models.folded import stored
from holdfast.models.metric import Metric
from holdfast.models.smoothed import with_rounding
from holdfast.spec import Resample
from holdfast.training import Run, merge, parse, under
from holdfast.training import train as run_training

Image = str | Path | NDArray[np.uint8] | NDArray[np.float32]
"""A picture's path, or its pixels as C×H×W (uint8, or floats in [0, 1])."""


def train(
    data: str,
    out: str | Path,
    settings: Mapping[str, Any] | None = None,
    preset: str | None = None,
    **sections: Any,
) -> Run:
    """Train an embedder on a data set or a folder of images into the folder `out`.

    `settings` and `sections` are the tables of a config:
    `train("photos/", "runs/mine", model={"name": "small"}, train={"epochs": 5})`; a name alone will do
    (`model="small"`). They go before those of `preset`.
    """
    named = {key: {"name": value} if isinstance(value, str) else value for key, value in sections.items()}
    table = merge({"data": {"name": str(data)}}, merge(settings or {}, named))
    below = {} if preset is None else under(preset, table)
    return run_training(parse(merge(below, table)), Path(out))


def index(
    embedder: AnyEmbedder,
    images: str | Path,
    out: str | Path,
    *,
    prefix: str = "",
    labels: Labels = "deepest",
    prune: bool = False,
    max_removed: float = MAX_REMOVED,
    boxes: float | None = None,
    smooth: Smoothing | None = None,
    metric: Metric | None = None,
    resample: Resample | None = None,
) -> AnyGallery:
    """A gallery at `out` of all images in a folder, tar or bucket; one that is there already is brought up to date.

    Labels are the folders that hold the images, or with `labels="top"` those at the top. With `prune` images
    whose file is gone leave it; a run that would remove more than the share `max_removed`
    removes nothing and is refused. With `boxes` it also holds what each candidate can become when its image is
    altered within linf:eps. With `smooth` its vectors are means over noisy copies, and searches say how far each
    hit holds in l2. With `metric` distances are those of a learned metric on the embedder's vectors, which the
    gallery keeps. `resample` is the filter that brings pictures to the network's size, by default the embedder's own.
    """
    gallery, _ = open_and_index(
        embedder,
        images,
        out,
        prefix=prefix,
        labels=labels,
        prune=prune,
        max_removed=max_removed,
        boxes=boxes,
        smooth=smooth,
        metric=metric,
        resample=resample,
    )
    return gallery


def open_and_index(
    embedder: AnyEmbedder,
    images: str | Path,
    out: str | Path,
    *,
    location: Path | None = None,
    prefix: str = "",
    labels: Labels = "deepest",
    prune: bool = False,
    max_removed: float = MAX_REMOVED,
    boxes: float | None = None,
    smooth: Smoothing | None = None,
    metric: Metric | None = None,
    resample: Resample | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> tuple[AnyGallery, Indexed]:
    """Like `index`, and what it did, to the certificates that the gallery keeps too.

    A new gallery that gets nothing to hold is not left behind. One that is there says itself how its vectors
    are smoothed, and which metric they are under.
    """
    existed = gallery_exists(out)
    smooth = _as_stored(out, smooth) if existed else smooth
    embedder = _under(
        _filtered(embedder, out if existed else None, resample), out if existed else None, metric
    )
    if smooth is not None:
        embedder = smoothed(embedder, smooth)
    info = embedder_info(embedder, location)
    if smooth is not None:
        info = smoothed_info(embedder, info, smooth)
    gallery = (
        open_gallery(out, embedder=info) if existed else create_gallery(out, dim=embedder.dim, embedder=info)
    )
    try:
        done = index_images(
            embedder,
            images,
            gallery,
            prefix=prefix,
            labels=labels,
            prune=prune,
            max_removed=max_removed,
            boxes=boxes,
            say=say,
        )
        done.certificates = recheck(gallery)
        done.cache = _refreshed(gallery)
        return gallery, done
    except BaseException:
        unused = not existed and _is_empty(gallery)
        gallery.close()
        if unused:
            discard_gallery(out)
        raise


def _is_empty(gallery: AnyGallery) -> bool:
    """Whether it surely holds nothing; a gallery that cannot say so must not hide why."""
    try:
        return len(gallery) == 0
    except HoldfastError:
        return False


def _filtered(embedder: AnyEmbedder, path: str | Path | None, resample: Resample | None) -> AnyEmbedder:
    """The embedder with the filter asked for; a gallery at `path` keeps its own."""
    if isinstance(embedder, Smoothed) or resample is None:
        return embedder
    if path is not None:
        with open_gallery(path, readonly=True) as gallery:
            kept = gallery.info.embedder.resample
        if kept != resample:
            raise GalleryError(
                f"the pictures of {path} are {kept}, not {resample}; index into another gallery"
            )
    return embedder.resampled(resample)


def _under(embedder: AnyEmbedder, path: str | Path | None, metric: Metric | None) -> AnyEmbedder:
    """The embedder with the metric asked for, or with that of the gallery at `path`; the two must be the same."""
    asked = None if metric is None else stored(metric)
    if path is not None:
        with open_gallery(path, readonly=True) as gallery:
            info = gallery.info.embedder
        kept = info.card.get("metric")
        if asked is not None and (kept is None or kept["matrix"] != asked["matrix"]):
            raise GalleryError(
                f"{path} is under {'no' if kept is None else 'another'} metric; index into another gallery"
            )
        return as_stored(embedder, info)
    if asked is None:
        return embedder
    return as_stored(embedder, EmbedderInfo(embedder.fingerprint(), {"metric": asked}))


def _refreshed(gallery: AnyGallery) -> str:
    """Bring the cache of a large gallery up to date; the gallery is whole without it, so no failure counts."""
    if not isinstance(gallery, Gallery):
        return ""
    try:
        written = gallery.refresh_cache()
    except (StorageError, RunError) as cause:
        return f"the cache was not written: {cause}"
    if written is None:
        return ""
    return f"cache: {written.bytes / 1e6:,.0f} MB, {written.read:,} of {written.blocks:,} blocks new"


def _as_stored(path: str | Path, asked: Smoothing | None) -> Smoothing | None:
    """How a gallery that is there is smoothed, which is how it goes on."""
    with open_gallery(path, readonly=True) as gallery:
        stored = stored_smoothing(gallery.info.embedder)
    if asked is None:
        return stored
    if stored is not None and asked.bound is not None and asked.bound == with_rounding(stored.bound):
        asked = replace(
            asked, bound=stored.bound
        )  # Bounds of before were stored without the share for rounding.
    if stored is None:
        raise GalleryError(f"{path} is not smoothed, and cannot become so; index into another gallery")
    unlike = [
        f"{name}={value} ({getattr(stored, name)} there)"
        for name, value in asdict(asked).items()
        if value is not None and getattr(stored, name) != value
    ]
    if unlike:
        raise GalleryError(
            f"{path} is smoothed otherwise: {', '.join(unlike)} was asked; leave --smooth out, or index into "
            "another gallery"
        )
    return stored


def search(gallery: AnyGallery, embedder: AnyEmbedder, image: Image, k: int = 10) -> Hits:
    """The k candidates nearest to a picture; an embedder that did not make the gallery is refused."""
    gallery.check_embedder(embedder_info(embedder))
    if isinstance(image, (str, Path)):
        name, pixels = str(image), read_image(Path(image), embedder.spec)
    else:
        name, pixels = "query", np.asarray(image)
    if isinstance(embedder, Smoothed):
        return smoothed_search(gallery, embedder, pixels, k, name).plain
    return gallery.search(embedder.embed(pixels[None]).numpy(), k, names=[name])[0]
