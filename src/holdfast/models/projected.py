"""A linear layer behind any network: the head that is trained where a model has none of ours."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from holdfast.models.embedder import Embedder, placement

HEAD = "embedding"
PROJECTION = "projection"
"""The key of an architecture that says how many dimensions the layer gives."""


class Projected(nn.Module):
    """`network` and a linear layer from its `features` to `dim` dimensions."""

    def __init__(self, network: nn.Module, features: int, dim: int) -> None:
        super().__init__()
        self.network, self.flatten = network, nn.Flatten(1)
        self.embedding = nn.Linear(features, dim)

    def forward(self, images: Tensor) -> Tensor:
        vectors: Tensor = self.embedding(self.flatten(self.network(images)))
        return vectors


def projected(base: Embedder, dim: int) -> Embedder:
    """`base` with a layer of `dim` dimensions behind it, whose first weights depend on torch's random state alone."""
    made = copy.copy(base)
    # The shallow copy of a module shares its table of parts.
    made._modules = dict(base._modules)
    device, dtype = placement(base)
    network = Projected(base.network, base.dim, dim).to(device, dtype)
    network.train(base.network.training)
    made.network, made.flatten, made.dim = network, nn.Identity(), dim
    made.architecture = {**base.architecture, PROJECTION: dim}
    made.card, made.origin = None, None
    return made


def behind(network: nn.Module, dim: object, tensors: dict[str, Tensor]) -> nn.Module:
    """The network of a saved embedder: with the layer behind it, as wide as its saved weights, if `dim` says so."""
    if dim is None:
        return network
    weight = tensors.get(f"{HEAD}.weight", torch.empty(0, 0))
    return Projected(network, weight.shape[-1], int(str(dim)))
