"""The small plain networks: `small`, `large`, `c2f2` and `cnn7-narrow`."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import nn

from holdfast.errors import ModelError
from holdfast.models.blueprint import Blueprint
from holdfast.spec import ImageSpec

Conv = tuple[int, int, int, int]
"""Filters, kernel, stride, padding: Conv-f-k-s-p in Table 3."""

_SMALL: tuple[Conv, ...] = ((16, 4, 2, 1), (32, 4, 1, 1))
_CNN7 = ((1, 1), (1, 1), (2, 2), (2, 1), (2, 1))
"""Filters, as multiples of the width, and stride of each 3×3 convolution."""
_HIDDEN = 8
"""Neurons of the hidden layer, as a multiple of the width."""
_LARGE: tuple[Conv, ...] = ((64, 3, 1, 1), (64, 3, 1, 1), (128, 3, 2, 1), (128, 3, 1, 1), (128, 3, 1, 1))


def small(spec: ImageSpec, dim: int, *, activation: str | None = None) -> tuple[nn.Module, int]:
    """`Small` of Kakizaki et al., appendix, Table 3: two convolutions and a linear layer.

    With `activation="relu"` the embedding is rectified: what is left of a classifier whose logit layer
    was taken off, because there is a ReLU between any two layers.
    """
    return _convolutions(spec, dim, _SMALL, activation), dim


def large(spec: ImageSpec, dim: int, *, activation: str | None = None) -> tuple[nn.Module, int]:
    """`Large` of Kakizaki et al., appendix, Table 3: five convolutions and a linear layer."""
    return _convolutions(spec, dim, _LARGE, activation), dim


def _convolutions(spec: ImageSpec, dim: int, convs: Sequence[Conv], activation: str | None) -> nn.Module:
    if activation not in (None, "relu"):
        raise ModelError(f"an embedding's activation is relu or left out, not {activation!r}")
    layers: list[nn.Module] = []
    channels = spec.channels
    sides: tuple[int, ...] = (spec.height, spec.width)
    for filters, kernel, stride, padding in convs:
        layers += [nn.Conv2d(channels, filters, kernel, stride, padding), nn.ReLU()]
        channels = filters
        sides = tuple((side + 2 * padding - kernel) // stride + 1 for side in sides)
    network = _sequence(layers, nn.Linear(channels * math.prod(sides), dim))
    if activation is not None:
        network.add_module("activation", nn.ReLU())
    return network


def c2f2(spec: ImageSpec, dim: int) -> tuple[nn.Module, int]:
    """Two 5×5 convolutions, each with a pool of 2, a hidden layer of 1024, then the embedding layer.

    The 28-pixel network of the ranking attacks' papers. As in their public code, padding is 2 (a
    convolution keeps the size) and there is no dropout.
    """
    layers = [
        *(nn.Conv2d(spec.channels, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
    ]
    hidden = nn.Linear(64 * (spec.height // 4) * (spec.width // 4), 1024)
    return _sequence(layers, hidden, nn.ReLU(), nn.Linear(1024, dim)), dim


def cnn7_narrow(spec: ImageSpec, dim: int, *, width: int = 16) -> tuple[nn.Module, int]:
    """The seven-layer network of certified classification (Shi et al. 2021), a quarter as wide.

    Five 3×3 convolutions, a hidden linear layer and the embedding layer, with batch norm behind each but the last.
    `width=64` is that of the papers.
    """
    if width < 1:
        raise ModelError(f"a width is at least 1, not {width}")
    layers: list[nn.Module] = []
    channels = spec.channels
    sides: tuple[int, ...] = (spec.height, spec.width)
    for multiple, stride in _CNN7:
        filters = multiple * width
        layers += [nn.Conv2d(channels, filters, 3, stride, 1, bias=False), nn.BatchNorm2d(filters), nn.ReLU()]
        channels = filters
        sides = tuple((side - 1) // stride + 1 for side in sides)
    hidden = _HIDDEN * width
    after = (nn.Linear(channels * math.prod(sides), hidden, bias=False), nn.BatchNorm1d(hidden), nn.ReLU())
    return _sequence(layers, *after, nn.Linear(hidden, dim)), dim


def _sequence(layers: list[nn.Module], *after: nn.Module) -> nn.Module:
    network = nn.Sequential(*layers, nn.Flatten(1), *after[:-1])
    network.add_module("embedding", after[-1])
    return network


SMALL = Blueprint(small, dim=128, unit_norm=False, classifier="embedding.", min_side=4)
LARGE = Blueprint(large, dim=128, unit_norm=False, classifier="embedding.")
C2F2 = Blueprint(c2f2, dim=512, unit_norm=True, classifier="embedding.", min_side=4)
CNN7_NARROW = Blueprint(cnn7_narrow, dim=128, unit_norm=False, classifier="embedding.")
