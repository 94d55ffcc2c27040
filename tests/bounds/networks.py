"""Small random networks that between them use every operation that bounds know."""

from __future__ import annotations

import torch
from torch import nn


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x):
        return torch.relu(x + self.second(torch.relu(self.norm(self.first(x)))))


class Gated(nn.Module):
    """Sums of branches of which one is repeated: over the pixels, and over the channels."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.mask = nn.Conv2d(2, 3, 3), nn.Conv2d(2, 1, 3)
        self.pool, self.last = nn.AdaptiveAvgPool2d(1), nn.Linear(3 * 36, 4)

    def forward(self, x):
        y = torch.relu(self.first(x))
        y = torch.relu(self.mask(x) + y)
        return self.last(torch.flatten(y + self.pool(y), 1))


class Arithmetic(nn.Module):
    """Constants on either side, functions and methods instead of modules."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("shift", torch.tensor([[[[0.3]], [[-0.2]]]]))
        self.layer = nn.Linear(32, 4)

    def forward(self, x):
        x = (1.5 - (x - self.shift) * 2.0) / 3.0 + 0.1
        x = nn.functional.max_pool2d(x.relu(), 2)
        return self.layer(torch.flatten(torch.tanh(x), 1))


def make(kind: str, seed: int) -> tuple[nn.Module, tuple[int, int, int]]:
    """A network in eval mode with weights and statistics of that seed, and its input's shape."""
    torch.manual_seed(seed)
    shape = (2, 8, 8)
    nets = {
        "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(128, 6)),
        "deep": lambda: nn.Sequential(
            nn.Flatten(), nn.Linear(128, 10), nn.ReLU(), nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 4)
        ),
        "conv": lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(4, 4, 3, dilation=2, padding=2, groups=2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(64, 5),
        ),
        "norm": lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.AvgPool2d(2),
            nn.Flatten(),
            nn.BatchNorm1d(36),
            nn.Linear(36, 4),
        ),
        "pool": lambda: nn.Sequential(
            nn.ZeroPad2d(1),
            nn.Conv2d(2, 3, 3),
            nn.LeakyReLU(0.1),
            nn.MaxPool2d(3, 2, 1),
            nn.Hardtanh(-0.5, 0.7),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Dropout(),
            nn.Linear(12, 4),
            nn.Sigmoid(),
        ),
        "smooth": lambda: nn.Sequential(
            nn.Conv2d(2, 3, 3),
            nn.ELU(),
            nn.Conv2d(3, 3, 3),
            nn.Softplus(),
            nn.Flatten(),
            nn.Linear(48, 4),
            nn.Tanh(),
        ),
        "residual": lambda: nn.Sequential(
            nn.Conv2d(2, 3, 3), Residual(3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 5)
        ),
        "arithmetic": Arithmetic,
        "gated": Gated,
        "uneven": lambda: nn.Sequential(
            nn.Conv2d(2, 3, (1, 3), padding="same"),
            nn.LeakyReLU(0.3),
            nn.MaxPool2d(3, 2, ceil_mode=True),
            nn.Conv2d(3, 3, 2),
            nn.LeakyReLU(1.5),
            nn.Flatten(),
            nn.Linear(27, 4),
        ),
    }
    net = nets[kind]()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            nn.init.normal_(module.weight)
            nn.init.normal_(module.bias)
            module.running_mean.normal_()
            module.running_var.uniform_(0.3, 2.0)
    return net.eval(), shape


KINDS = ("linear", "deep", "conv", "norm", "pool", "smooth", "residual", "arithmetic", "gated", "uneven")


def attempts(
    net: nn.Module,
    images: torch.Tensor,
    eps: float,
    clip: bool,
    seed: int,
    towards: torch.Tensor | None = None,
) -> list[torch.Tensor]:
    """Images of the box: random ones, corners, and the ends of gradient ascents and descents (along `towards`)."""
    g = torch.Generator().manual_seed(seed)
    low, high = (
        (images - eps, images + eps) if not clip else ((images - eps).clamp(0), (images + eps).clamp(max=1))
    )
    tries = [low + (high - low) * torch.rand(images.shape, generator=g) for _ in range(4)]
    tries += [torch.where(torch.rand(images.shape, generator=g) < 0.5, low, high) for _ in range(4)]
    for sign in (1, -1):
        x = images.clone().requires_grad_(True)
        for _ in range(5):
            out = net(x)
            weights = torch.randn(out.shape[1], generator=g) if towards is None else towards
            (gradient,) = torch.autograd.grad((out * weights).sum(), x)
            x = torch.maximum(
                torch.minimum(x.detach() + sign * eps * gradient.sign(), high), low
            ).requires_grad_(True)
        tries.append(x.detach())
    return tries
