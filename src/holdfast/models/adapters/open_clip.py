"""Image towers of `open_clip`: `open_clip:ViT-B-32/laion2b_s34b_b79k`. Written against its documented interface."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from holdfast.errors import ModelError
from holdfast.models.adapters.base import LibraryAdapter, brought
from holdfast.models.embedder import Embedder
from holdfast.models.options import Options
from holdfast.models.wrap import embedder_of
from holdfast.spec import ImageSpec


class OpenClip(LibraryAdapter):
    """The side of a CLIP model that pictures pass; vectors of length 1 unless `normalise=false`."""

    prefix = "open_clip"
    form = "open_clip:MODEL/WEIGHTS"
    says = "the image tower of an open_clip model"
    takes = frozenset({"mean", "std", "normalise"})
    library = "open_clip"
    command = "pip install open_clip_torch"

    def lasting(self, name: str) -> str:
        return name

    def open(self, name: str, options: Options) -> Embedder:
        open_clip = self.imported()
        what, _, weights = self.what(name).partition("/")
        if not weights:
            known = [tag for model, tag in open_clip.list_pretrained() if model == what]
            raise ModelError(
                f"say which weights: open_clip:{what}/WEIGHTS; known: {', '.join(known) or 'none of this model'}"
            )
        try:
            model = open_clip.create_model(what, pretrained=weights)
        except (RuntimeError, ValueError) as cause:
            raise ModelError(f"{name} cannot be loaded: {str(cause).splitlines()[0]}") from cause
        settings = open_clip.get_model_preprocess_cfg(model)
        spec = brought(_spec(settings, name), options.images)
        return embedder_of(
            ImageTower(model).eval(),
            spec,
            mean=options.mean or settings["mean"],
            std=options.std or settings["std"],
            unit_norm=options.normalise is not False,
            architecture={"name": self.prefix, "class": type(model).__qualname__, "model": what},
        )

    def rebuild(self, architecture: Mapping[str, Any], spec: ImageSpec) -> nn.Module:
        return ImageTower(self.imported().create_model(architecture["model"], pretrained=None))


class ImageTower(nn.Module):
    """The part of a CLIP model that pictures pass."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.visual = model.visual

    def forward(self, images: Tensor) -> Tensor:
        vectors: Tensor = self.visual(images)
        return vectors


def _spec(settings: Mapping[str, Any], name: str) -> ImageSpec:
    size, resample = settings["size"], settings.get("interpolation", "bicubic")
    mode = settings.get("resize_mode", "shortest")
    if mode not in ("shortest", "squash") or resample not in ("bilinear", "bicubic"):
        raise ModelError(f"{name} prepares pictures by {mode} and {resample}, which Holdfast does not")
    height, width = (size, size) if isinstance(size, int) else size
    resize = height if mode == "shortest" and height == width else (height, width)
    return ImageSpec(3, height, width, resample=resample, resize=resize)
