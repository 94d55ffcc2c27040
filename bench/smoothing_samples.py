"""Samples a second of a smoothed embedder, against the bare forward pass of its base model at its best batch size.

efficientnet-lite0 at 128 pixels (random weights) and `small` on 28. Ours draws the noise, adds it, looks that no
vector is longer than the bound, and sums. Medians of runs in turn; the last line is the lower of the two ratios.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from _common import alternate, report

if TYPE_CHECKING:
    from holdfast.models import Embedder

SETS = (
    ("efficientnet-lite0", (3, 128, 128), 128, (16, 32, 64)),
    ("small", (1, 28, 28), 4096, (64, 256, 1024)),
)


def bare(base: Embedder, samples: int, size: int) -> Callable[[], None]:
    import torch

    batch = torch.rand(size, *base.spec.shape)

    def run() -> None:
        with torch.no_grad():
            for _ in range(samples // size):
                base(batch)

    return run


def ours(base: Embedder, samples: int, size: int) -> Callable[[], None]:
    import torch

    from holdfast.models import Smoothed

    smoothed = Smoothed(base, 0.1, samples, batch_size=size)
    image = torch.rand(base.spec.shape)

    def run() -> None:
        sum(part.double().sum(0) for part in smoothed.sample(image, 0, samples))

    return run


def main() -> None:
    import torch

    from holdfast import models

    worst = float("inf")
    for name, shape, samples, sizes in SETS:
        torch.manual_seed(0)
        options: dict[str, Any] = {"pretrained": False} if name.startswith("efficientnet") else {}
        base = models.build(name, spec=shape, unit_norm=True, **options).eval()
        timed = {f"bare {size}": bare(base, samples, size) for size in sizes}
        timed |= {f"ours {size}": ours(base, samples, size) for size in sizes}
        seconds = alternate(timed, repeats=3)
        best = {kind: min(seconds[f"{kind} {size}"] for size in sizes) for kind in ("bare", "ours")}
        for kind, value in best.items():
            print(f"{name}, {kind}: {samples / value:,.0f} a second")
        worst = min(worst, best["bare"] / best["ours"])
    report("smoothing_samples", worst, 0.9, "higher", "bare forward throughput at the best batch size")


if __name__ == "__main__":
    main()
