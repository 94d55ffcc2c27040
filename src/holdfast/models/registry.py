"""The networks by name."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from holdfast.errors import ModelError, unknown_name
from holdfast.models.blueprint import Blueprint
from holdfast.models.efficientnet import EFFICIENTNET_LITE0, EFFICIENTNET_LITE1, EFFICIENTNET_LITE2
from holdfast.models.embedder import Embedder
from holdfast.models.inputs import as_spec
from holdfast.models.mobilenet import MOBILENET_V2
from holdfast.models.pixels import PerChannel, pixels_for
from holdfast.models.plain import C2F2, CNN7_NARROW, LARGE, SMALL
from holdfast.models.resnet import RESNET18, RESNET50
from holdfast.models.sides import CandidateSide
from holdfast.models.vgg import VGG11, VGG11_BN
from holdfast.models.weights import load_backbone, parse, read_bytes
from holdfast.spec import ImageSpec

MODELS: dict[str, Blueprint] = {
    "small": SMALL,
    "large": LARGE,
    "c2f2": C2F2,
    "cnn7-narrow": CNN7_NARROW,
    "resnet18": RESNET18,
    "resnet50": RESNET50,
    "vgg11": VGG11,
    "vgg11-bn": VGG11_BN,
    "efficientnet-lite0": EFFICIENTNET_LITE0,
    "efficientnet-lite1": EFFICIENTNET_LITE1,
    "efficientnet-lite2": EFFICIENTNET_LITE2,
    "mobilenet-v2": MOBILENET_V2,
}


def build(
    name: str,
    *,
    spec: ImageSpec | tuple[int, int, int],
    dim: int | None = None,
    unit_norm: bool | None = None,
    weights: str | Path | None = None,
    mean: PerChannel | None = None,
    std: PerChannel | None = None,
    freeze_batch_norm: bool = False,
    candidate_side: CandidateSide | None = None,
    **options: Any,
) -> Embedder:
    """A new embedder with the network `name`; what is not given is the network's own default.

    Its first weights depend on torch's random state alone. `weights` is a safetensors file of a
    backbone, whose classifier is left out. `pretrained=False` leaves out the weights a network is
    shipped with. Unknown names and options are errors that list the known ones.
    """
    blueprint = _blueprint(name)
    if blueprint.shipped is not None:
        pretrained = options.pop("pretrained", weights is None)
        if not isinstance(pretrained, bool):
            raise ModelError(f"pretrained is true or false, not {pretrained!r}")
        if pretrained and weights is not None:
            raise ModelError("give weights or pretrained=True, not both")
    else:
        pretrained = False
    spec = as_spec(spec)
    network, size, architecture = construct(name, spec, dim, options)
    if weights is not None:
        path = Path(weights)
        load_backbone(network, parse(read_bytes(path), path), blueprint.classifier, str(path))
    elif pretrained and blueprint.shipped is not None:
        tensors = blueprint.shipped.tensors(name)
        load_backbone(network, tensors, blueprint.classifier, f"the weights of {name}")
    embedder = Embedder(
        network,
        spec=spec,
        dim=size,
        unit_norm=blueprint.unit_norm if unit_norm is None else unit_norm,
        pixels=pixels_for(spec, mean, std) or blueprint.pixels,
        architecture=architecture,
        candidate_side=candidate_side,
    )
    embedder.freeze_batch_norm = freeze_batch_norm
    embedder.pretrained = pretrained or weights is not None
    return embedder.train()


def construct(
    name: str, spec: ImageSpec, dim: int | None, options: Mapping[str, Any]
) -> tuple[nn.Module, int, dict[str, Any]]:
    """The bare network `name`, its embedding size, and the architecture that makes it again."""
    blueprint = _blueprint(name)
    defaults = _options(blueprint)
    for option in options:
        if option not in defaults:
            known = [*defaults, *(["pretrained"] if blueprint.shipped else [])]
            raise ModelError(
                unknown_name(f"option of {name}", option, known)
                if known
                else f"unknown option '{option}'; {name} has no options"
            )
    if dim is not None and (not isinstance(dim, int) or isinstance(dim, bool) or dim < 1):
        raise ModelError(f"an embedding has at least 1 dimension, not {dim!r}")
    if blueprint.colour_only and spec.channels != 3:
        raise ModelError(
            f"{name} takes colour images, not {spec}; read the images in colour (data.channels = 3)"
        )
    if min(spec.height, spec.width) < blueprint.min_side:
        least = f"{blueprint.min_side}x{blueprint.min_side}"
        raise ModelError(f"images of {spec} are too small for {name}, which needs at least {least}")
    chosen = {**defaults, **options}
    network, size = blueprint.network(spec, blueprint.dim if dim is None else dim, **chosen)
    if dim is not None and size != dim:
        raise ModelError(
            f"{name} without a head has {size} dimensions, not {dim}; leave dim out or add a head"
        )
    # What is left open is no part of the architecture: a network can get an option without becoming another.
    return network, size, {"name": name, **{key: value for key, value in chosen.items() if value is not None}}


def _blueprint(name: str) -> Blueprint:
    if name not in MODELS:
        raise ModelError(unknown_name("model", name, MODELS))
    return MODELS[name]


def _options(blueprint: Blueprint) -> dict[str, Any]:
    parameters = inspect.signature(blueprint.network).parameters.values()
    return {entry.name: entry.default for entry in parameters if entry.kind is entry.KEYWORD_ONLY}
