"""Recall@1 of a pretrained network on photographs resized by the bilinear filter, beside the bicubic one.

Bilinear pictures carry claims about the file; this says what they cost. Each image of a test set asks for the others.
The value is the lowest ratio over the sets, bilinear over bicubic. Needs the sets in HOLDFAST_DATA and the weights of
efficientnet-lite0.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch

from _common import report

SETS = ("cub-40x30", "cars-40x30", "clothing-small")
SIDE, MOST = 128, 600


def recall(name: str, resample: str) -> torch.Tensor:
    """Whether the nearest other image is of the same class, for each image."""
    from holdfast import data, models
    from holdfast.spec import ImageSpec

    spec = ImageSpec(3, SIDE, SIDE, resample=resample)  # type: ignore[arg-type]
    torch.manual_seed(0)
    embedder = models.build("efficientnet-lite0", spec=spec, head="none", unit_norm=True)
    images = data.load(name, spec=spec).test
    step = -(-len(images) // MOST)
    chosen = range(0, len(images), step)
    vectors = embedder.embed(images.batch(chosen), batch_size=32)
    labels = torch.from_numpy(images.require_labels("recall"))[list(chosen)]
    away = torch.cdist(vectors.double(), vectors.double()).fill_diagonal_(torch.inf)
    return labels[away.argmin(1)] == labels


def main() -> None:
    os.environ.setdefault("HOLDFAST_DATA", str(Path(__file__).parents[2] / "shared" / "data"))
    ratios = []
    for name in SETS:
        bilinear, bicubic = recall(name, "bilinear"), recall(name, "bicubic")
        one, other = float(bilinear.double().mean()), float(bicubic.double().mean())
        gained, lost = int((bilinear & ~bicubic).sum()), int((bicubic & ~bilinear).sum())
        ratios.append(one / other)
        print(
            f"{name}: {len(bilinear):,} images, Recall@1 bilinear {one:.3f}, bicubic {other:.3f} "
            f"({gained} images only by bilinear, {lost} only by bicubic)"
        )
    report(
        "filter_recall", min(ratios), 0.98, "higher", "Recall@1 with the bicubic filter, lowest of the sets"
    )


if __name__ == "__main__":
    main()
