"""Image models of Hugging Face `transformers`: a folder, or a name on the hub.

Only safetensors are read, and no code that a model brings is run. How pictures are prepared is read from the image
processor's settings and done by our own decoder, the same with and without torchvision.
"""

from __future__ import annotations

import inspect
import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from holdfast.errors import ModelError
from holdfast.models.adapters.base import LibraryAdapter, brought
from holdfast.models.embedder import Embedder
from holdfast.models.options import Options
from holdfast.models.outputs import Pool, Pooled, usual_pool
from holdfast.models.pixels import Pixels, pixels_for
from holdfast.models.wrap import embedder_of
from holdfast.spec import ImageSpec, Resample

_FILTERS: dict[int, Resample] = {2: "bilinear", 3: "bicubic"}
"""Of Pillow's numbers, those that pictures can be resized by here."""
_NOT_THE_FUNCTION = ("_name_or_path", "architectures", "transformers_version", "dtype", "torch_dtype")
"""Of a configuration: where it came from, not what it computes."""
_UNUSED = ("text_model", "text_projection")
"""Parts of a two-sided model that no picture passes."""

Found = TypeVar("Found")


class HuggingFace(LibraryAdapter):
    """A vision model, or the picture's side of a CLIP-like one; vectors of length 1 unless `normalise=false`."""

    prefix = "hf"
    form = "hf:FOLDER or hf:OWNER/NAME"
    says = "an image model of Hugging Face transformers"
    takes = frozenset({"size", "mean", "std", "pool", "normalise"})
    library = "transformers"
    command = "pip install 'holdfast[hf]'"

    def open(self, name: str, options: Options) -> Embedder:
        transformers, where = self.imported(), self.what(name)
        with _quiet(transformers):
            # First the smallest file: what is not to be had is said at once.
            _fetched(
                where, lambda local: transformers.AutoConfig.from_pretrained(where, local_files_only=local)
            )
            settings = _processor(transformers, where)
            kind = transformers.AutoModel
            model, info = _fetched(
                where,
                lambda local: kind.from_pretrained(
                    where,
                    local_files_only=local,
                    use_safetensors=True,
                    output_loading_info=True,
                    dtype="float32",
                ),
            )
        return embedder_from(model, settings, options, name=name, missing=info["missing_keys"])

    def rebuild(self, architecture: Mapping[str, Any], spec: ImageSpec) -> nn.Module:
        transformers = self.imported()
        config = dict(architecture["config"])
        with _quiet(transformers):
            made = transformers.AutoConfig.for_model(config.pop("model_type"), **config)
            model = transformers.AutoModel.from_config(made)
        return _pooled(model, architecture["pool"], spec)


def embedder_from(
    model: nn.Module,
    settings: Mapping[str, Any] | None,
    options: Options,
    *,
    name: str,
    missing: set[str] | None = None,
) -> Embedder:
    """An embedder of a loaded model and the settings of its image processor.

    Weights that its files lack and that the vectors rest on are refused: they would be random.
    """
    pool = options.pool or usual_pool(model)
    lost = sorted(
        key
        for key in missing or ()
        if not key.startswith(_UNUSED) and (pool == "pooler" or "pooler" not in key)
    )
    if lost:
        raise ModelError(
            f"{name} lacks weights that its network needs ({lost[0]}{', …' if len(lost) > 1 else ''}); the files "
            "are of another architecture"
        )
    spec, pixels = prepared_as(settings, options, name)
    config = json.loads(model.config.to_json_string(use_diff=False))  # type: ignore[union-attr, operator]
    architecture = {
        "name": HuggingFace.prefix,
        "class": type(model).__qualname__,
        "pool": pool,
        "config": _of_the_function(config),
    }
    return embedder_of(
        _pooled(model, pool, spec).eval(),
        spec,
        mean=pixels.mean,
        std=pixels.std,
        unit_norm=options.normalise is not False,
        architecture=architecture,
    )


def prepared_as(settings: Mapping[str, Any] | None, options: Options, name: str) -> tuple[ImageSpec, Pixels]:
    """How an image processor with these settings prepares a picture, as our decoder does it."""
    if settings is None:
        if options.images is None or options.mean is None or options.std is None:
            raise ModelError(
                f"{name} has no preprocessor_config.json that says how it takes pictures; give size, mean and std"
            )
        pixels = pixels_for(options.images, options.mean, options.std)
        assert pixels is not None
        return options.images, pixels
    spec = brought(_spec(settings, name), options.images)
    usual = _pixels(settings)
    mean, std = options.mean or usual.mean, options.std or usual.std
    return spec, pixels_for(spec, mean, std) or usual


def _spec(settings: Mapping[str, Any], name: str) -> ImageSpec:
    def refused(what: str) -> ModelError:
        return ModelError(f"{name} {what}; Holdfast does not, so export the model with a plain processor")

    if settings.get("do_flip_channel_order"):
        raise refused("takes blue before red")
    if settings.get("do_pad"):
        raise refused("fills pictures up with borders")
    number = settings.get("resample")
    if number not in _FILTERS:
        raise refused(f"resizes by filter {number} of Pillow")
    cropped = bool(settings.get("do_center_crop"))
    size = _sides(settings.get("size"))
    if not settings.get("do_resize", True) or size is None:
        raise refused("does not say to which size it resizes")
    resize: int | tuple[int, int] = size
    cut = _sides(settings.get("crop_size")) if cropped else None
    share = settings.get("crop_pct")
    if share and isinstance(size, int) and not cropped:
        # As ConvNeXt: large pictures are squashed, others get a border that is cut off.
        resize, cut = ((size, size), (size, size)) if size >= 384 else (int(size / share), size)
    final = cut if cut is not None else size
    if isinstance(resize, int) and cut is None:
        raise refused("keeps the shape of each picture")
    height, width = (final, final) if isinstance(final, int) else final
    return ImageSpec(3, height, width, resample=_FILTERS[number], resize=resize)


def _sides(size: Any) -> int | tuple[int, int] | None:
    """The shorter side, or height and width; None where it is said in another way."""
    if isinstance(size, int) or size is None:
        return size
    if size.get("shortest_edge"):
        return None if size.get("longest_edge") else int(size["shortest_edge"])
    if size.get("height") and size.get("width"):
        return int(size["height"]), int(size["width"])
    return None


def _pixels(settings: Mapping[str, Any]) -> Pixels:
    """x in [0, 1] as the processor hands it on: ((255 x s − o) − mean) / std."""
    scale = 255 * float(settings["rescale_factor"]) if settings.get("do_rescale", True) else 255.0
    offset = 1.0 if settings.get("rescale_offset") else 0.0
    normalised = settings.get("do_normalize", True)
    mean = settings["image_mean"] if normalised else (0.0,) * 3
    std = settings["image_std"] if normalised else (1.0,) * 3
    return Pixels(
        tuple((float(value) + offset) / scale for value in mean), tuple(float(value) / scale for value in std)
    )


def _pooled(model: nn.Module, pool: Pool, spec: ImageSpec) -> Pooled:
    """The network from pictures to vectors, without parts that no picture passes."""
    # Where it was loaded from is no part of the function, and fingerprints read public attributes.
    for part in model.modules():
        if hasattr(part, "name_or_path"):
            part.name_or_path = ""  # type: ignore[assignment]
    for name in _UNUSED:
        if hasattr(model, name):
            setattr(model, name, nn.Identity())
    config: Any = getattr(model.config, "vision_config", model.config)
    made_for = getattr(config, "image_size", None)
    made_for = tuple(made_for) if isinstance(made_for, list | tuple) else (made_for, made_for)
    other_size = made_for != (None, None) and made_for != (spec.height, spec.width)
    call = model.get_image_features if hasattr(model, "get_image_features") else model.forward
    stretches = "interpolate_pos_encoding" in inspect.signature(call).parameters  # type: ignore[arg-type]
    return Pooled(model, pool, **({"interpolate_pos_encoding": True} if other_size and stretches else {}))


def _processor(transformers: Any, where: str) -> dict[str, Any] | None:
    """The settings of the image processor; None where the model brings none."""
    folder = Path(where).expanduser()
    names = ("preprocessor_config.json", "processor_config.json")
    if folder.is_dir() and not any((folder / name).exists() for name in names):
        return None
    found = _fetched(
        where, lambda local: transformers.AutoImageProcessor.from_pretrained(where, local_files_only=local)
    )
    settings: dict[str, Any] = json.loads(json.dumps(found.to_dict(), default=_plain))
    return settings


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else int(value)


def _fetched(where: str, load: Callable[[bool], Found]) -> Found:
    """What is on this machine, else from the hub; a folder is never looked for there."""
    local = where.startswith((".", "/", "~")) or Path(where).exists()
    if local and not Path(where).is_dir():
        raise ModelError(f"there is no folder at {where}; name one with config.json and model.safetensors")
    try:
        try:
            return load(True)
        except OSError:
            if local:
                raise
            return load(False)
    # The library raises nearly anything on damaged files.
    except Exception as cause:
        why = (str(cause).strip().splitlines() or [type(cause).__name__])[0]
        raise ModelError(f"hf:{where} cannot be loaded: {why}") from cause


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Neither bars nor advice on stderr, where our own notes go."""
    log = transformers.utils.logging
    before, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.set_verbosity(before)
        if bars:
            log.enable_progress_bar()


def _of_the_function(config: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _of_the_function(value) if isinstance(value, dict) else value
        for key, value in config.items()
        if key not in _NOT_THE_FUNCTION
    }
