"""A small ReLU network on feature vectors, to compare metrics with."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from holdfast.progress import bar
from holdfast.randomness import derive, generator


def train_perceptron(
    vectors: NDArray[Any],
    labels: NDArray[Any],
    classes: int,
    *,
    hidden: int = 128,
    epochs: int = 30,
    batch: int = 128,
    lr: float = 1e-3,
    noise: float = 0.0,
    seed: int = 0,
) -> nn.Sequential:
    """Two hidden layers, cross-entropy, Adam with a falling step; with `noise` on noisy vectors."""
    torch.manual_seed(derive(seed, "perceptron") % 2**63)
    points, kinds = torch.as_tensor(vectors, dtype=torch.float32), torch.as_tensor(labels)
    sizes = (points.shape[1], hidden, hidden, classes)
    network = nn.Sequential(
        nn.Linear(sizes[0], sizes[1]),
        nn.ReLU(),
        nn.Linear(sizes[1], sizes[2]),
        nn.ReLU(),
        nn.Linear(sizes[2], sizes[3]),
    )
    optimiser = torch.optim.Adam(network.parameters(), lr=lr)
    with bar("epochs", epochs) as advance:
        for epoch in range(epochs):
            optimiser.param_groups[0]["lr"] = lr * (1 - epoch / epochs)
            chance = generator(seed, "perceptron", epoch)
            for rows in torch.split(torch.randperm(len(points), generator=chance), batch):
                some = points[rows]
                if noise:
                    some = some + noise * torch.randn(some.shape, generator=chance)
                loss = nn.functional.cross_entropy(network(some), kinds[rows])
                optimiser.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
            advance(1)
    return network.eval()


def layers_of(network: nn.Sequential) -> list[tuple[Tensor, Tensor]]:
    """The weights and biases of its linear layers, in float64."""
    linear = [layer for layer in network if isinstance(layer, nn.Linear)]
    return [(layer.weight.detach().double(), layer.bias.detach().double()) for layer in linear]
