"""A small ReLU network on feature vectors, to compare metrics with: trained, and certified in ℓ2.

How far may an input move with its class the same? By CROWN, and by smoothing. The layers are
z_k = W_k a_{k−1} + b_k with a_k = max(z_k, 0), as in the rebuttal of Wang et al. 2020 (ARML, Figure i).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from scipy.stats import norm
from torch import Tensor, nn

from holdfast.certify.smoothing.confidence import share_below
from holdfast.progress import bar
from holdfast.randomness import derive, generator

Layers = Sequence[tuple[Tensor, Tensor]]
BISECTIONS = 16
ROUNDING = 1e-9
"""Relative to what is summed: more than float64 leaves uncertain in a few layers of some hundred numbers."""


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


def crown_radii(layers: Layers, points: Tensor, labels: Tensor, most: float) -> Tensor:
    """For each point a radius, at most `most`, within which no move in ℓ2 changes the network's class; float64.

    0 where the class is wrong as it is. The largest radius that bisection finds for which CROWN (Zhang et al. 2018,
    with the adaptive lower slope) bounds every margin z_y − z_j above 0.
    """
    low, high = (
        torch.zeros(len(points), dtype=torch.float64),
        torch.full((len(points),), float(most)).double(),
    )
    right = least_margins(layers, points, labels, low) > 0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        held = least_margins(layers, points, labels, middle) > 0
        low, high = torch.where(held, middle, low), torch.where(held, high, middle)
    return torch.where(right, low, 0.0)


def least_margins(layers: Layers, points: Tensor, labels: Tensor, eps: Tensor) -> Tensor:
    """A lower bound of min over j of z_y − z_j over all inputs within `eps` of each point."""
    classes = len(layers[-1][1])
    own = torch.eye(classes, dtype=torch.float64)[labels]
    others = own[:, None] - torch.eye(classes, dtype=torch.float64)
    bounds: list[tuple[Tensor, Tensor]] = []
    for depth in range(len(layers) - 1):
        every = torch.eye(len(layers[depth][1]), dtype=torch.float64).expand(len(points), -1, -1)
        lower = _lower(layers[: depth + 1], bounds, every, points, eps)
        bounds.append((lower, -_lower(layers[: depth + 1], bounds, -every, points, eps)))
    found = _lower(layers, bounds, others, points, eps)
    # The margin of a class to itself is 0, and no other.
    return found.masked_fill(own > 0, torch.inf).min(1).values


def _lower(
    layers: Layers, bounds: Sequence[tuple[Tensor, Tensor]], spec: Tensor, points: Tensor, eps: Tensor
) -> Tensor:
    """A lower bound of `spec` z, z the output of the last layer, with the bounds of all layers before it."""
    rows = spec
    rest = torch.zeros(spec.shape[:2], dtype=torch.float64)
    size = torch.zeros_like(rest)
    for depth in range(len(layers) - 1, -1, -1):
        weights, bias = layers[depth]
        rest = rest + rows @ bias
        size = size + rows.abs() @ bias.abs()
        rows = rows @ weights
        if depth:
            low, high = bounds[depth - 1]
            crossing = (low < 0) & (high > 0)
            steep = torch.where(crossing, high / (high - low).clamp(min=1e-300), (low >= 0).double())
            flat = torch.where(crossing, (high > -low).double(), steep)
            lift = torch.where(crossing, -high * low / (high - low).clamp(min=1e-300), 0.0)
            down = rows.clamp(max=0)
            rest = rest + (down @ lift[:, :, None]).squeeze(2)
            size = size + (down.abs() @ lift[:, :, None]).squeeze(2)
            rows = rows.clamp(min=0) * flat[:, None] + down * steep[:, None]
    value = (rows @ points[:, :, None]).squeeze(2)
    size = size + (rows.abs() @ points.abs()[:, :, None]).squeeze(2)
    reach: Tensor = eps[:, None] * rows.norm(dim=2)
    return value + rest - reach * (1 + ROUNDING) - ROUNDING * size


def smoothing_radii(
    classify: Callable[[Tensor], Tensor],
    points: Tensor,
    labels: Tensor,
    *,
    sigma: float,
    n: int,
    first: int,
    alpha: float,
    chance: torch.Generator,
) -> Tensor:
    """For each point a radius within which the class that noisy copies vote for stays `labels`; 0 where unsettled.

    Wrong for a point with probability at most α (Cohen et al. 2019, Theorem 1 and CERTIFY): `first` samples choose the
    class, n others bound its share p from below, and the radius is σ Φ⁻¹(p).
    """
    out = torch.zeros(len(points), dtype=torch.float64)
    for row, point in enumerate(points):
        noise = torch.randn(first + n, len(point), generator=chance)
        votes = classify(point[None].float() + sigma * noise)
        chosen = torch.bincount(votes[:first]).argmax()
        count = int((votes[first:] == chosen).sum())
        share = float(share_below([count], n, alpha)[0])  # type: ignore[arg-type]
        if chosen == labels[row] and share > 0.5:
            out[row] = sigma * float(norm.ppf(share))
    return out
