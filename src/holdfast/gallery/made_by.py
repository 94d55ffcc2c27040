"""A gallery together with the embedder that made it."""

from __future__ import annotations

from pathlib import Path

from holdfast import models
from holdfast.errors import GalleryError, ModelError
from holdfast.gallery.gallery import Gallery
from holdfast.gallery.indexing import as_stored, embedder_info
from holdfast.gallery.opening import open_gallery
from holdfast.gallery.smoothed import smoothed, stored_smoothing
from holdfast.gallery.values import EmbedderInfo
from holdfast.models import AnyEmbedder
from holdfast.spec import ImageSpec

Model = AnyEmbedder | str | Path | None


def open_with_embedder(
    path: str | Path, model: Model = None, *, readonly: bool = True
) -> tuple[Gallery, AnyEmbedder]:
    """A gallery and the embedder that made it, found where it was or at `model`."""
    gallery = open_gallery(path, readonly=readonly)
    try:
        return gallery, embedder_of(gallery, model)
    except BaseException:
        gallery.close()
        raise


def embedder_of(gallery: Gallery, model: Model = None) -> AnyEmbedder:
    """The embedder that made a gallery, which then has it; found where it was or at `model`, any other is refused."""
    path, info = gallery.path, gallery.info.embedder
    hint = info.location
    if model is None and hint is None:
        raise GalleryError(f"{path} does not say where its embedder is; name it", option="model")
    if model is None and not models.opens_alone(str(hint)):
        # Opening a gallery must not run a file, nor download a model, that the gallery itself names.
        raise GalleryError(f"{path} was made by {hint}; name it", option="model")
    try:
        named = str(hint) if model is None else model
        embedder = (
            models.find(models.with_options_of(named, hint), _spec(info))
            if isinstance(named, str | Path)
            else named
        )
    except ModelError as error:
        if model is not None:
            raise
        raise GalleryError(
            f"the embedder of {path} is not where it was ({error}); name it", option="model"
        ) from None
    embedder, how = as_stored(embedder, info), stored_smoothing(info)
    embedder = embedder if how is None else smoothed(embedder, how)
    gallery.check_embedder(embedder_info(embedder))
    gallery.embedder = embedder
    return embedder


def _spec(info: EmbedderInfo) -> ImageSpec | None:
    """The images that the embedder took, for a model that does not say it itself."""
    spec = info.card.get("spec")
    return None if spec is None else ImageSpec(**{"resample": "bicubic", **spec})
