"""A gallery made of images, or brought up to date with them, in one call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

from holdfast.data import Labels
from holdfast.errors import GalleryError, HoldfastError, RunError, StorageError
from holdfast.gallery.gallery import Gallery
from holdfast.gallery.indexing import MAX_REMOVED, Indexed, as_stored, embedder_info, index_images
from holdfast.gallery.opening import create_gallery, discard_gallery, gallery_exists, open_gallery
from holdfast.gallery.recheck import recheck
from holdfast.gallery.smoothed import smoothed, smoothed_info, stored_smoothing
from holdfast.gallery.values import EmbedderInfo
from holdfast.models import AnyEmbedder, Smoothed
from holdfast.models.folded import stored
from holdfast.models.metric import Metric
from holdfast.models.smoothed import with_rounding
from holdfast.proofs.smoothing import Smoothing
from holdfast.spec import Resample


def open_and_index(
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
    say: Callable[[str], None] = lambda line: None,
) -> tuple[Gallery, Indexed]:
    """A gallery brought up to date with a folder, tar or bucket, and what that did, to its kept certificates too.

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
    info = embedder_info(embedder)
    if smooth is not None:
        info = smoothed_info(embedder, info, smooth)
    gallery = (
        open_gallery(out, embedder=info) if existed else create_gallery(out, dim=embedder.dim, embedder=info)
    )
    gallery.embedder = embedder
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


def _is_empty(gallery: Gallery) -> bool:
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


def _refreshed(gallery: Gallery) -> str:
    """Bring the cache of a large gallery up to date; the gallery is whole without it, so no failure counts."""
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
            f"{path} is smoothed otherwise: {', '.join(unlike)} was asked; leave the smoothing out, or index into "
            "another gallery",
            option="smooth",
        )
    return stored
