"""Image models of `timm`, by name: `timm:resnet50`. Written against its documented interface."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from holdfast.errors import ModelError, unknown_name
from holdfast.models.adapters.base import LibraryAdapter, brought
from holdfast.models.embedder import Embedder
from holdfast.models.options import Options
from holdfast.models.wrap import embedder_of
from holdfast.spec import ImageSpec


class Timm(LibraryAdapter):
    """A model without its classifier; vectors of length 1 unless `normalise=false`."""

    prefix = "timm"
    form = "timm:NAME"
    says = "an image model of timm"
    takes = frozenset({"size", "mean", "std", "normalise"})
    library = "timm"
    command = "pip install timm"

    def lasting(self, name: str) -> str:
        return name

    def open(self, name: str, options: Options) -> Embedder:
        timm, what = self.imported(), self.what(name)
        try:
            model = timm.create_model(what, pretrained=True, num_classes=0)
        except RuntimeError as cause:
            if what not in timm.list_models():
                raise ModelError(
                    unknown_name("model of timm", what, timm.list_models(f"{what[:3]}*"))
                ) from cause
            raise ModelError(f"{name} cannot be loaded: {str(cause).splitlines()[0]}") from cause
        settings = timm.data.resolve_model_data_config(model)
        spec = brought(_spec(settings, name), options.images)
        return embedder_of(
            model.eval(),
            spec,
            mean=options.mean or settings["mean"],
            std=options.std or settings["std"],
            unit_norm=options.normalise is not False,
            architecture={"name": self.prefix, "class": type(model).__qualname__, "model": what},
        )

    def rebuild(self, architecture: Mapping[str, Any], spec: ImageSpec) -> nn.Module:
        made: nn.Module = self.imported().create_model(architecture["model"], pretrained=False, num_classes=0)
        return made


def _spec(settings: Mapping[str, Any], name: str) -> ImageSpec:
    """timm scales the shorter side to size / crop_pct and cuts the middle out; `squash` scales both sides."""
    channels, height, width = settings["input_size"]
    mode, resample = settings.get("crop_mode", "center"), settings["interpolation"]
    if mode not in ("center", "squash") or resample not in ("bilinear", "bicubic"):
        raise ModelError(f"{name} prepares pictures by {mode} and {resample}, which Holdfast does not")
    share = settings["crop_pct"]
    rows, columns = int(height / share), int(width / share)
    resize = (rows, columns) if mode == "squash" or rows != columns else rows
    return ImageSpec(channels, height, width, resample=resample, resize=resize)
