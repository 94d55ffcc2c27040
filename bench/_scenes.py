"""Networks and images whose certificates are put to the test: random small networks, and a trained one."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from holdfast import data, models, wrap
from holdfast.models import Embedder, to_unit
from holdfast.spec import ImageSpec

SPEC = ImageSpec(1, 6, 6)
DIM = 6


@dataclass(frozen=True)
class Scene:
    """An embedder, queries, candidates and their classes, and how far images may move."""

    name: str
    embedder: Embedder
    queries: Tensor
    pool: Tensor
    same: Tensor
    eps: float
    clip: bool


class Branches(nn.Module):
    """A residual block."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 3, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.inner(x))


class Branching(nn.Module):
    """Gives less while it trains; it is left in train mode, as torch leaves every new module."""

    def forward(self, x: Tensor) -> Tensor:
        return 0.4 * x if self.training else x


def _layers(kind: str) -> list[nn.Module]:
    if kind == "branching":
        return [nn.Flatten(), nn.Linear(36, 16), nn.ReLU(), nn.Linear(16, DIM), Branching()]
    if kind == "subnormal":
        return [nn.Flatten(), nn.Linear(36, 12), nn.ReLU(), nn.Linear(12, DIM)]
    if kind == "grouped":
        return [
            nn.Conv2d(1, 6, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(6, 6, 3, stride=2, groups=6),
            nn.LeakyReLU(0.2),
            nn.Conv2d(6, 9, 2, groups=3, bias=False),
            nn.Flatten(),
            nn.Linear(9, DIM),
        ]
    if kind == "dense":
        return [nn.Flatten(), nn.Linear(36, 16), nn.ReLU(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, DIM)]
    if kind == "convolutions":
        first = nn.Conv2d(1, 4, 3, stride=2, padding=1)
        second = nn.Conv2d(4, 4, 3, padding=2, dilation=2, groups=2)
        return [first, nn.ReLU(), second, nn.ReLU(), nn.Flatten(), nn.Linear(36, DIM)]
    if kind == "normalised":
        return [
            nn.Conv2d(1, 4, 3),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.AvgPool2d(2),
            nn.Flatten(),
            nn.BatchNorm1d(16),
            nn.Linear(16, DIM),
        ]
    if kind == "pooled":
        return [
            nn.Conv2d(1, 4, 3, padding=1),
            nn.LeakyReLU(0.1),
            nn.MaxPool2d(3, 2, 1),
            nn.Hardtanh(-1, 1),
            nn.Flatten(),
            nn.Linear(36, DIM),
            nn.ReLU(),
        ]
    if kind == "smooth":
        return [nn.Flatten(), nn.Linear(36, 12), nn.Tanh(), nn.Linear(12, 12), nn.ELU(), nn.Linear(12, DIM)]
    return [nn.Conv2d(1, 3, 3), Branches(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, DIM)]


KINDS = (
    "dense",
    "convolutions",
    "normalised",
    "pooled",
    "smooth",
    "residual",
    "branching",
    "grouped",
    "subnormal",
)


def random_scene(number: int, queries: int = 5, candidates: int = 20) -> Scene:
    """The scene of that number: kinds in turn, normalised embeddings or not, clipped or not, small eps to large."""
    torch.manual_seed(number)
    kind = KINDS[number % len(KINDS)]
    network = nn.Sequential(*_layers(kind))
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
            nn.init.normal_(layer.weight)
            nn.init.normal_(layer.bias)
            assert layer.running_mean is not None
            assert layer.running_var is not None
            layer.running_mean.normal_()
            layer.running_var.uniform_(0.3, 2.0)
        elif isinstance(layer, nn.Linear | nn.Conv2d):
            nn.init.normal_(layer.weight, std=(2 / layer.weight[0].numel()) ** 0.5)
    turn = number // len(KINDS)
    if kind == "subnormal":
        # Every product underflows in part; what is left is scaled up again where the features are compared.
        assert isinstance(network[1], nn.Linear)
        with torch.no_grad():
            network[1].weight.mul_(1e-38)
            network[1].bias.mul_(1e-38)
            network[3].weight.mul_(1e38)  # type: ignore[operator]
    if kind != "branching":
        network.eval()
    embedder = wrap(network, SPEC, unit_norm=bool(turn % 2))
    images = torch.rand(queries + candidates, 1, 6, 6)
    images = torch.where(torch.rand(images.shape) < 0.2, images.round(), images)
    classes = torch.randint(0, 3, (queries + candidates,))
    return Scene(
        f"{kind} {turn}",
        embedder,
        images[:queries],
        images[queries:],
        classes[:queries, None] == classes[None, queries:],
        (0.002, 0.01, 0.03)[turn % 3],
        bool((turn // 2) % 2 == 0),
    )


def trained_scene(steps: int = 120, queries: int = 8, candidates: int = 60) -> Scene:
    """`small` after a brief certified-rank training, kept in the temporary folder, on images it did not see."""
    embedder = _trained(steps)
    images = data.load("fashion-mnist-mini").test
    asked, found = data.draw(images, queries, candidates, 0)
    classes = torch.from_numpy(images.require_labels("certificates"))
    same = classes[asked][:, None] == classes[found][None]
    return Scene(
        "trained", embedder, to_unit(images.batch(asked)), to_unit(images.batch(found)), same, 0.03, True
    )


def _trained(steps: int) -> Embedder:
    from holdfast.errors import RunError
    from holdfast.evaluation import config_hash
    from holdfast.training import parse, train

    table = {
        "data": {"name": "fashion-mnist-mini", "validation": 0},
        "defence": {"name": "certified-rank", "eps": 0.05, "ramp_start": 0.02, "ramp_end": 0.5},
        "train": {"steps": steps, "batch": 160, "lr": 0.003, "clip": 10},
    }
    folder = Path(tempfile.gettempdir()) / f"holdfast-soundness-{config_hash(table)[:12]}"
    # A finished run is not trained again.
    with suppress(RunError):
        train(parse(table), folder, say=lambda line: None)
    return models.load(folder)


def twins_taken_for_each_other() -> int:
    """Pairs of networks with the same weights and one other setting whose fingerprints are equal; prints how many."""
    twins: list[tuple[nn.Module, nn.Module]] = [
        (nn.LeakyReLU(0.1), nn.LeakyReLU(0.2)),
        (nn.ELU(1.0), nn.ELU(1.5)),
        (nn.Hardtanh(-1, 1), nn.Hardtanh(-2, 1)),
        (nn.MaxPool2d(2), nn.MaxPool2d(2, ceil_mode=True)),
        (nn.MaxPool2d(3, 1, 1), nn.AvgPool2d(3, 1, 1)),
        (nn.AvgPool2d(3, 1, 1), nn.AvgPool2d(3, 1, 1, count_include_pad=False)),
        (nn.Conv2d(1, 1, 3, padding=1), nn.Conv2d(1, 1, 3, padding=2, dilation=2)),
        (nn.Conv2d(1, 1, 2, stride=1), nn.Conv2d(1, 1, 2, stride=2)),
        (nn.BatchNorm2d(1, eps=1e-5), nn.BatchNorm2d(1, eps=1e-2)),
    ]
    same = 0
    for one, other in twins:
        other.load_state_dict(one.state_dict())
        prints = [
            wrap(nn.Sequential(layer, nn.AdaptiveAvgPool2d(2), nn.Flatten()).eval(), SPEC).fingerprint()
            for layer in (one, other)
        ]
        same += prints[0] == prints[1]
    print(f"settings: {len(twins)} pairs of networks, {same} taken for each other")
    return same


def scenes(networks: int, trained: bool) -> Iterator[Scene]:
    """The random ones, then the trained one."""
    for number in range(networks):
        yield random_scene(number)
    if trained:
        yield trained_scene()
