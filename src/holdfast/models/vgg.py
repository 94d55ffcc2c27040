"""VGG-11 with and without batch norm, with torchvision's parameter names and shapes."""

from __future__ import annotations

import math

from torch import Tensor, nn

from holdfast.models.blueprint import IMAGENET, Blueprint, embedding_layer
from holdfast.spec import ImageSpec

_STAGES = ((64,), (128,), (256, 256), (512, 512), (512, 512))
_POOLED = 7


class _VGG(nn.Module):
    def __init__(
        self, spec: ImageSpec, *, norm: bool = False, pooled: tuple[int, int] = (_POOLED, _POOLED)
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = spec.channels
        for stage in _STAGES:
            for filters in stage:
                layers.append(nn.Conv2d(channels, filters, 3, padding=1))
                layers += [nn.BatchNorm2d(filters), nn.ReLU()] if norm else [nn.ReLU()]
                channels = filters
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(pooled)
        self.flatten = nn.Flatten(1)
        self.classifier: nn.Module = nn.Identity()
        self.width = channels * math.prod(pooled)
        for layer in self.features:
            if isinstance(layer, nn.Conv2d) and layer.bias is not None:
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
                nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.classifier(self.flatten(self.avgpool(self.features(x))))
        return out


def vgg11(spec: ImageSpec, dim: int, *, head: str = "linear") -> tuple[nn.Module, int]:
    """VGG-11 without batch norm, its three linear layers replaced by one (Kakizaki et al., appendix D).

    Images of any size from 32 are pooled to 7×7 before it, which changes nothing at 224.
    """
    network = _VGG(spec)
    network.classifier, size = embedding_layer(network.width, dim, head)
    return network, size


def vgg11_bn(spec: ImageSpec, dim: int, *, head: str = "linear") -> tuple[nn.Module, int]:
    """VGG-11 with batch norm behind each convolution, its three linear layers replaced by one.

    What is left behind the last max pool (3×3 for images of 96 pixels) goes into that layer as it is, pooled to 7×7
    only where it is larger.
    """
    left = [min(_POOLED, side // 2 ** len(_STAGES)) for side in (spec.height, spec.width)]
    network = _VGG(spec, norm=True, pooled=(left[0], left[1]))
    network.classifier, size = embedding_layer(network.width, dim, head)
    return network, size


VGG11 = Blueprint(
    vgg11,
    dim=128,
    unit_norm=False,
    classifier="classifier.",
    last_blocks=("features.16.", "features.18."),
    min_side=32,
    colour_only=True,
    pixels=IMAGENET,
)
VGG11_BN = Blueprint(
    vgg11_bn,
    dim=128,
    unit_norm=False,
    classifier="classifier.",
    last_blocks=("features.22.", "features.23.", "features.25.", "features.26."),
    min_side=32,
    colour_only=True,
    pixels=IMAGENET,
)
