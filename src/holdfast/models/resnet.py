"""ResNet-18 and ResNet-50, with torchvision's parameter names and shapes."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from holdfast.models.blueprint import IMAGENET, Blueprint, embedding_layer
from holdfast.spec import ImageSpec


class _Basic(nn.Module):
    """Two 3×3 convolutions beside a shortcut."""

    expansion = 1

    def __init__(self, channels: int, filters: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, filters, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(filters)
        self.relu = nn.ReLU()
        self.conv2 = nn.Conv2d(filters, filters, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(filters)
        self.downsample = _shortcut(channels, filters, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        out: Tensor = self.relu(y + self.downsample(x))
        return out


class _Bottleneck(nn.Module):
    """1×1, 3×3, 1×1 beside a shortcut; the 3×3 carries the stride, as torchvision's weights expect."""

    expansion = 4

    def __init__(self, channels: int, filters: int, stride: int) -> None:
        super().__init__()
        out = filters * self.expansion
        self.conv1 = nn.Conv2d(channels, filters, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(filters)
        self.conv2 = nn.Conv2d(filters, filters, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(filters)
        self.conv3 = nn.Conv2d(filters, out, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out)
        self.relu = nn.ReLU()
        self.downsample = _shortcut(channels, out, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        out: Tensor = self.relu(y + self.downsample(x))
        return out


def _shortcut(channels: int, out: int, stride: int) -> nn.Module:
    if stride == 1 and channels == out:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))


def _stage(
    block: type[_Basic | _Bottleneck], channels: int, filters: int, depth: int, stride: int
) -> nn.Module:
    rest = (block(filters * block.expansion, filters, 1) for _ in range(depth - 1))
    return nn.Sequential(block(channels, filters, stride), *rest)


class _ResNet(nn.Module):
    def __init__(
        self, spec: ImageSpec, block: type[_Basic | _Bottleneck], depths: tuple[int, int, int, int]
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(spec.channels, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        widths = [64, *(64 * 2**stage * block.expansion for stage in range(4))]
        self.layer1 = _stage(block, widths[0], 64, depths[0], stride=1)
        self.layer2 = _stage(block, widths[1], 128, depths[1], stride=2)
        self.layer3 = _stage(block, widths[2], 256, depths[2], stride=2)
        self.layer4 = _stage(block, widths[3], 512, depths[3], stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten(1)
        self.fc: nn.Module = nn.Identity()
        self.width = widths[4]
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        out: Tensor = self.fc(self.flatten(self.avgpool(x)))
        return out


def _with_head(network: _ResNet, dim: int, head: str) -> tuple[nn.Module, int]:
    network.fc, size = embedding_layer(network.width, dim, head)
    return network, size


def resnet18(spec: ImageSpec, dim: int, *, head: str = "linear") -> tuple[nn.Module, int]:
    """ResNet-18 (He et al. 2016); 512 features before the head."""
    return _with_head(_ResNet(spec, _Basic, (2, 2, 2, 2)), dim, head)


def resnet50(spec: ImageSpec, dim: int, *, head: str = "linear") -> tuple[nn.Module, int]:
    """ResNet-50 (He et al. 2016); 2048 features before the head."""
    return _with_head(_ResNet(spec, _Bottleneck, (3, 4, 6, 3)), dim, head)


_SHARED: dict[str, Any] = {
    "unit_norm": True,
    "classifier": "fc.",
    "last_blocks": ("layer4.",),
    "colour_only": True,
    "pixels": IMAGENET,
}
RESNET18 = Blueprint(resnet18, dim=512, **_SHARED)
RESNET50 = Blueprint(resnet50, dim=128, **_SHARED)
